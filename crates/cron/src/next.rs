//! The next time of a schedule.
//!
//! The clock of the zone is moved forward field by field, months first, and the search starts over when a field wraps around. A time
//! that clocks skip is not due; one that they repeat is due twice.

use crate::Fields;
use crate::local::{Local, whole_second};
use jiff::Timestamp;

const HOUR: i64 = 3_600;
const MINUTE: i64 = 60;

pub(crate) fn next(fields: &Fields, after: Timestamp) -> Option<Timestamp> {
    let zone = &fields.zone;
    let mut t = Local::at(whole_second(after) + 1, zone)?;
    let last_year = t.year + 5;
    // Whether smaller fields were set to their minimum.
    let mut reset = false;
    'wrap: while t.year <= last_year {
        while !fields.month.has(t.month) {
            if !reset {
                reset = true;
                t = Local::date(t.year, t.month, 1, (0, 0), zone)?;
            }
            t = Local::date(t.year, t.month + 1, t.day, (t.hour, t.minute), zone)?;
            if t.month == 1 {
                continue 'wrap;
            }
        }
        while !day_matches(fields, t) {
            if !reset {
                reset = true;
                t = Local::date(t.year, t.month, t.day, (0, 0), zone)?;
            }
            t = Local::date(t.year, t.month, t.day + 1, (t.hour, t.minute), zone)?;
            // Midnight may not exist on a day.
            if t.hour > 12 {
                t = Local::at(t.second + (24 - t.hour) * HOUR, zone)?;
            } else if t.hour != 0 {
                t = Local::at(t.second - t.hour * HOUR, zone)?;
            }
            if t.day == 1 {
                continue 'wrap;
            }
        }
        while !fields.hour.has(t.hour) {
            if !reset {
                reset = true;
                t = Local::date(t.year, t.month, t.day, (t.hour, 0), zone)?;
            }
            t = Local::at(t.second + HOUR, zone)?;
            if t.hour == 0 {
                continue 'wrap;
            }
        }
        while !fields.minute.has(t.minute) {
            if !reset {
                reset = true;
                t = Local::at(t.second.div_euclid(MINUTE) * MINUTE, zone)?;
            }
            t = Local::at(t.second + MINUTE, zone)?;
            if t.minute == 0 {
                continue 'wrap;
            }
        }
        if t.past_minute != 0 {
            reset = true;
            t = Local::at(t.second - t.past_minute + MINUTE, zone)?;
            continue;
        }
        return Timestamp::from_second(t.second).ok();
    }
    None
}

/// A day has to match both fields if one of them is a star, else one of them.
fn day_matches(fields: &Fields, t: Local) -> bool {
    let (month, week) = (fields.day_of_month.has(t.day), fields.day_of_week.has(t.weekday));
    if fields.day_of_month.star || fields.day_of_week.star { month && week } else { month || week }
}

#[cfg(test)]
mod tests {
    use crate::{Schedule, time_zone};
    use jiff::Timestamp;

    /// The times after `start`, both in the zone's clock with its offset.
    fn check(schedule: &str, zone: &str, start: &str, expect: &[&str]) {
        let zone = time_zone(zone).unwrap();
        let schedule = Schedule::parse(schedule).unwrap().in_zone(zone.clone());
        let mut t: Timestamp = start.parse().unwrap();
        let mut got = Vec::new();
        while got.len() < expect.len() {
            let Some(next) = schedule.next(t) else { break };
            assert!(next > t, "{next} after {t}");
            t = next;
            got.push(t.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string());
        }
        assert_eq!(got, expect, "{schedule:?}");
    }

    /// Clauses: C13.syntax
    #[test]
    fn times_follow_each_other() {
        for (schedule, start, expect) in [
            ("0/15 * * * *", "2012-07-09T14:45:00Z", &["2012-07-09T15:00:00+00:00", "2012-07-09T15:15:00+00:00"][..]),
            ("* * * * *", "2012-07-09T14:59:59.999Z", &["2012-07-09T15:00:00+00:00"]),
            ("20-35/15 * * * *", "2012-07-09T23:46:00Z", &["2012-07-10T00:20:00+00:00", "2012-07-10T00:35:00+00:00"]),
            ("0 0 9 Apr-Oct ?", "2012-07-09T23:35:00Z", &["2012-08-09T00:00:00+00:00"]),
            (
                "0 0 */5 Apr,Aug,Oct Mon",
                "2012-07-09T23:35:00Z",
                &["2012-08-01T00:00:00+00:00", "2012-08-06T00:00:00+00:00"],
            ),
            ("0 0 29 Feb ?", "2012-07-09T23:35:00Z", &["2016-02-29T00:00:00+00:00"]),
            // A day of the month or of the week.
            ("0 0 13 * fri", "2026-02-01T00:00:00Z", &["2026-02-06T00:00:00+00:00", "2026-02-13T00:00:00+00:00"]),
            // Both, because one of them is a star; a star with a step is none.
            ("0 0 * * fri", "2026-02-01T00:00:00Z", &["2026-02-06T00:00:00+00:00", "2026-02-13T00:00:00+00:00"]),
            ("0 0 */20 * fri", "2026-02-02T00:00:00Z", &["2026-02-06T00:00:00+00:00", "2026-02-13T00:00:00+00:00"]),
            ("59 23 31 2 *", "2026-02-01T00:00:00Z", &[]),
            (", * * * *", "2026-02-01T00:00:00Z", &[]),
            ("@yearly", "2026-02-01T00:00:00Z", &["2027-01-01T00:00:00+00:00"]),
            ("@monthly", "2026-02-01T00:00:00Z", &["2026-03-01T00:00:00+00:00"]),
            ("@weekly", "2026-02-02T00:00:00Z", &["2026-02-08T00:00:00+00:00"]),
            ("@midnight", "2026-02-02T00:00:00Z", &["2026-02-03T00:00:00+00:00"]),
            ("@hourly", "2026-02-02T00:00:00Z", &["2026-02-02T01:00:00+00:00"]),
            ("@every 90m", "2026-02-02T00:00:00.5Z", &["2026-02-02T01:30:00+00:00", "2026-02-02T03:00:00+00:00"]),
            ("@every 1500ms", "2026-02-02T00:00:00Z", &["2026-02-02T00:00:01+00:00"]),
            ("@every -1h", "2026-02-02T00:00:00Z", &["2026-02-02T00:00:01+00:00"]),
        ] {
            check(schedule, "UTC", start, expect);
        }
    }

    /// Clauses: C13.daylight-saving
    #[test]
    fn clocks_that_change_skip_and_repeat_times() {
        let new_york = "America/New_York";
        // 2012-03-11 01:59:59 EST is followed by 03:00:00 EDT.
        check("30 2 11 Mar ?", new_york, "2012-03-11T05:00:00Z", &["2013-03-11T02:30:00-04:00"]);
        check(
            "0 * * * ?",
            new_york,
            "2012-03-11T05:00:00Z",
            &["2012-03-11T01:00:00-05:00", "2012-03-11T03:00:00-04:00", "2012-03-11T04:00:00-04:00"],
        );
        check("0 2 * * ?", new_york, "2012-03-11T05:00:00Z", &["2012-03-12T02:00:00-04:00"]);
        check("0 3 * * ?", new_york, "2012-03-11T05:00:00Z", &["2012-03-11T03:00:00-04:00"]);
        // 2012-11-04 01:59:59 EDT is followed by 01:00:00 EST.
        check(
            "0 * * * ?",
            new_york,
            "2012-11-04T04:00:00Z",
            &["2012-11-04T01:00:00-04:00", "2012-11-04T01:00:00-05:00", "2012-11-04T02:00:00-05:00"],
        );
        check(
            "0 1 * * ?",
            new_york,
            "2012-11-04T04:00:00Z",
            &["2012-11-04T01:00:00-04:00", "2012-11-04T01:00:00-05:00", "2012-11-05T01:00:00-05:00"],
        );
        check("30 2 * * *", new_york, "2012-11-04T04:00:00Z", &["2012-11-04T02:30:00-05:00"]);
        // Midnight does not exist on 2018-11-04.
        check(
            "0 0 * * *",
            "America/Sao_Paulo",
            "2018-11-03T02:59:00Z",
            &["2018-11-03T00:00:00-03:00", "2018-11-05T00:00:00-02:00"],
        );
        // Half an hour is skipped.
        check("15 2 * * *", "Australia/Lord_Howe", "2026-10-02T16:00:00Z", &["2026-10-05T02:15:00+11:00"]);
        check(
            "@daily",
            "Europe/Berlin",
            "2026-03-28T12:00:00Z",
            &["2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"],
        );
    }

    /// Any text is parsed or refused, and times follow each other in every zone.
    #[test]
    fn any_text_is_a_schedule_or_an_error() {
        let words = [
            "*",
            "?",
            "/",
            "-",
            ",",
            " ",
            " ",
            " ",
            " ",
            "0",
            "1",
            "5",
            "15",
            "30",
            "59",
            "23",
            "31",
            "jan",
            "FEB",
            "sun",
            "@every ",
            "@daily",
            "1h",
            "1.5s",
            "TZ=",
            "CRON_TZ=",
            "UTC",
            "é",
            "\u{0}",
            "18446744073709551616",
        ];
        let zones =
            ["UTC", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Africa/Monrovia", "Pacific/Apia"];
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut parsed = 0;
        for round in 0..20_000 {
            let text: String = match round % 2 {
                0 => (0..random(12)).map(|_| words[random(words.len())]).collect(),
                _ => (0..5).map(|_| ["* ", "*/7 ", "1 ", "1-3,5 ", "2/2 "][random(5)]).collect(),
            };
            let Ok(schedule) = Schedule::parse(&text) else { continue };
            parsed += 1;
            let zone = time_zone(zones[random(zones.len())]).unwrap();
            let schedule = schedule.in_zone(zone.clone());
            let mut t = Timestamp::from_second(random(4_000_000_000) as i64).unwrap();
            for _ in 0..3 {
                let Some(next) = schedule.next(t) else { break };
                assert!(next > t, "{text}: {next} after {t}");
                t = next;
            }
        }
        assert!(parsed > 10_000, "{parsed}");
    }

    #[test]
    fn times_at_the_end_of_time_have_no_next() {
        for schedule in ["* * * * *", "@every 2000000h", "0 0 1 1 *", "59 23 31 2 *"] {
            let schedule = Schedule::parse(schedule).unwrap();
            assert_eq!(schedule.next(Timestamp::MAX), None);
            let _ = schedule.next(Timestamp::MIN);
        }
    }
}
