//! Timestamps and durations.

use super::{Price, Result, Row, no_overload, row, short};
use crate::time;
use crate::value::Val;
use jiff::civil::DateTime;

const PART: &str = ".time:int;.time,string:int";
const PART_OF_BOTH: &str = ".time:int;.time,string:int;.dur:int";

pub(super) const ROWS: &[Row] = &[
    row("timestamp", "time:time;int:time;string:time", Price::Fixed(1), timestamp),
    row("duration", "dur:dur;int:dur;string:dur", Price::Fixed(1), duration),
    row("getDate", PART, Price::Fixed(1), |a| part(a, |t| t.day().into(), None)),
    row("getDayOfMonth", PART, Price::Fixed(1), |a| part(a, |t| i64::from(t.day()) - 1, None)),
    row("getDayOfWeek", PART, Price::Fixed(1), |a| part(a, |t| t.weekday().to_sunday_zero_offset().into(), None)),
    row("getDayOfYear", PART, Price::Fixed(1), |a| part(a, |t| i64::from(t.day_of_year()) - 1, None)),
    row("getFullYear", PART, Price::Fixed(1), |a| part(a, |t| t.year().into(), None)),
    row("getMonth", PART, Price::Fixed(1), |a| part(a, |t| i64::from(t.month()) - 1, None)),
    row("getHours", PART_OF_BOTH, Price::Fixed(1), |a| part(a, |t| t.hour().into(), Some(3_600_000_000_000))),
    row("getMinutes", PART_OF_BOTH, Price::Fixed(1), |a| part(a, |t| t.minute().into(), Some(60_000_000_000))),
    row("getSeconds", PART_OF_BOTH, Price::Fixed(1), |a| part(a, |t| t.second().into(), Some(1_000_000_000))),
    row("getMilliseconds", PART_OF_BOTH, Price::Fixed(1), |a| {
        part(a, |t| (t.subsec_nanosecond() / 1_000_000).into(), Some(1_000_000))
    }),
];

fn timestamp<'a>(args: &[Val<'a>]) -> Result<'a> {
    match &args[0] {
        v @ Val::Timestamp(_) => Ok(v.clone()),
        Val::Int(n) => {
            let nanos = time::in_range(i128::from(*n) * 1_000_000_000);
            nanos.map(Val::Timestamp).ok_or_else(|| "timestamp overflow".into())
        }
        Val::Str(s) => {
            let bad = |s: &str| {
                format!("parsing time {s:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {s:?} as \"2006\"").into()
            };
            let s = short(s.as_str()).map_err(bad)?;
            time::timestamp(s).map(Val::Timestamp).ok_or_else(|| bad(s))
        }
        _ => no_overload(),
    }
}

fn duration<'a>(args: &[Val<'a>]) -> Result<'a> {
    match &args[0] {
        v @ Val::Duration(_) => Ok(v.clone()),
        Val::Int(n) => Ok(Val::Duration(*n)),
        Val::Str(s) => {
            let bad = |s: &str| format!("time: invalid duration {s:?}").into();
            let s = short(s.as_str()).map_err(bad)?;
            time::duration(s).map(Val::Duration).ok_or_else(|| bad(s))
        }
        _ => no_overload(),
    }
}

fn part<'a>(args: &[Val<'a>], of: fn(&DateTime) -> i64, unit: Option<i64>) -> Result<'a> {
    match (&args[0], args.get(1)) {
        (Val::Timestamp(t), zone) => {
            let zone = match zone {
                None => None,
                Some(Val::Str(s)) => Some(s.as_str()),
                Some(_) => return no_overload(),
            };
            Ok(Val::Int(of(&time::civil(*t, zone)?)))
        }
        (Val::Duration(d), None) => unit.map_or_else(no_overload, |unit| Ok(Val::Int(d / unit))),
        _ => no_overload(),
    }
}
