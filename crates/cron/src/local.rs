//! Local times and back, as Go's `time.Date` resolves them where clocks change.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// A moment, in seconds, and the clock in a time zone then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    pub second: i64,
    pub year: i64,
    pub month: i64,
    pub day: i64,
    pub hour: i64,
    pub minute: i64,
    /// The second of the minute.
    pub past_minute: i64,
    /// 0 is Sunday.
    pub weekday: i64,
}

/// The second in which `t` is.
pub(crate) fn whole_second(t: Timestamp) -> i64 {
    // jiff truncates toward the epoch.
    t.as_second() - i64::from(t.subsec_nanosecond() < 0)
}

impl Local {
    /// None for seconds that no timestamp has.
    pub fn at(second: i64, zone: &TimeZone) -> Option<Self> {
        let t = zone.to_datetime(Timestamp::from_second(second).ok()?);
        Some(Self {
            second,
            year: t.year().into(),
            month: t.month().into(),
            day: t.day().into(),
            hour: t.hour().into(),
            minute: t.minute().into(),
            past_minute: t.second().into(),
            weekday: t.weekday().to_sunday_zero_offset().into(),
        })
    }

    /// The moment with this date and clock time, of which month and day may be beyond their ranges. A time that clocks skip is
    /// resolved with the offset after the change, one that they repeat with the offset that is in force at the equal time of UTC.
    pub fn date(year: i64, month: i64, day: i64, (hour, minute): (i64, i64), zone: &TimeZone) -> Option<Self> {
        let (year, month) = (year + (month - 1).div_euclid(12), (month - 1).rem_euclid(12) + 1);
        let as_utc = (days(year, month) + day - 1) * 86_400 + hour * 3_600 + minute * 60;
        let offset = |second: i64| Some(i64::from(zone.to_offset(Timestamp::from_second(second).ok()?).seconds()));
        let guess = as_utc - offset(as_utc)?;
        Self::at(as_utc - offset(guess)?, zone)
    }
}

/// Days from the epoch to the first of a month.
fn days(year: i64, month: i64) -> i64 {
    // Years that begin in March have their leap day at the end.
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + (153 * month + 2) / 5 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_and_repeated_hours_are_resolved_as_by_go() {
        let zone = TimeZone::get("America/New_York").unwrap_or(TimeZone::UTC);
        for (date, expect) in [
            // Skipped: 02:00 becomes 01:00 EST.
            ((2026, 3, 8, 2), "2026-03-08T06:00:00Z"),
            ((2026, 3, 8, 3), "2026-03-08T07:00:00Z"),
            // Repeated: the first of the two.
            ((2026, 11, 1, 1), "2026-11-01T05:00:00Z"),
            ((2026, 13, 0, 0), "2026-12-31T05:00:00Z"),
            ((2026, 2, 30, 0), "2026-03-02T05:00:00Z"),
        ] {
            let (year, month, day, hour) = date;
            let at =
                Local::date(year, month, day, (hour, 0), &zone).and_then(|l| Timestamp::from_second(l.second).ok());
            assert_eq!(at.map(|t| t.to_string()).as_deref(), Some(expect), "{date:?}");
        }
    }
}
