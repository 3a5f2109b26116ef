//! Schedules of CronJobs, as `robfig/cron` v3 parses and evaluates them (`ParseStandard`).
//!
//! One parser for the API server, which validates schedules, and the controller, which follows them. Errors are that library's, and only
//! the first is reported. Published crates for cron differ in syntax (`5/15`, `?`, `@every`) and in what they do when clocks change.

#![warn(missing_docs)]

mod duration;
mod local;
mod next;
mod parse;

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// The set bits of a field are its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    bits: u64,
    /// The field has `*` or `?` without a step. It affects how days of the month and of the week are combined.
    star: bool,
}

impl Field {
    fn has(self, value: i64) -> bool {
        (0..64).contains(&value) && self.bits >> value & 1 == 1
    }
}

/// The times at which something is due.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule(Kind);

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Fields(Box<Fields>),
    /// Every so many seconds.
    Every(i64),
}

#[derive(Clone, Debug, PartialEq)]
struct Fields {
    minute: Field,
    hour: Field,
    day_of_month: Field,
    month: Field,
    day_of_week: Field,
    zone: TimeZone,
}

impl Schedule {
    /// Parses five fields or a descriptor such as `@hourly` or `@every 90m`, optionally after `TZ=` or `CRON_TZ=` with a time zone. Without a
    /// zone, times are in UTC.
    pub fn parse(text: &str) -> Result<Self, String> {
        parse::schedule(text).map(Self)
    }

    /// The same schedule in another time zone. A schedule with `@every` has none.
    #[must_use]
    pub fn in_zone(mut self, zone: TimeZone) -> Self {
        if let Kind::Fields(fields) = &mut self.0 {
            fields.zone = zone;
        }
        self
    }

    /// Returns the first time after `after`. None if there is none within five years (31 February).
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match &self.0 {
            Kind::Fields(fields) => next::next(fields, after),
            Kind::Every(seconds) => Timestamp::from_second(local::whole_second(after).checked_add(*seconds)?).ok(),
        }
    }
}

/// Returns the time zone of a name in the IANA database, which is case-sensitive (Go's `time.LoadLocation`). The empty name is UTC.
pub fn time_zone(name: &str) -> Result<TimeZone, String> {
    if matches!(name, "" | "UTC" | "Local") {
        return Ok(TimeZone::UTC);
    }
    if name.contains("..") || name.starts_with(['/', '\\']) {
        return Err("time: invalid location name".to_owned());
    }
    let zone = TimeZone::get(name).ok().filter(|z| !z.is_unknown() && z.iana_name().is_none_or(|n| n == name));
    zone.ok_or_else(|| format!("unknown time zone {name}"))
}
