//! Resource quantities (`k8s.io/apimachinery/pkg/api/resource`): `100m`, `1.5Gi`, `1e3`.
//!
//! Held in billionths; what is finer is rounded up (away from zero), as upstream does. In the notation of powers of two, values
//! beyond ±2⁶³ saturate. In others they are exact up to ±10²⁹, where they saturate; upstream has no bound there.

use std::cmp::Ordering;
use std::fmt;
use thiserror::Error;

/// The notation of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Suffixes of powers of ten: `12k`, `500m`.
    DecimalSi,
    /// Suffixes of powers of two: `12Ki`.
    BinarySi,
    /// An exponent: `12e6`.
    DecimalExponent,
}

/// A quantity of a resource, exact to billionths (`resource.Quantity`).
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

/// The error of an invalid quantity.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// The text is no number with a suffix.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    /// There is no suffix of this name.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

const NANO: i128 = 1_000_000_000;
const MAX_BINARY: i128 = i64::MAX as i128 * NANO;
const MAX_DECIMAL: i128 = 10_i128.pow(29) * NANO;

impl Quantity {
    /// An integer.
    pub fn from_int(v: i64) -> Self {
        Self { nanos: i128::from(v) * NANO, format: Format::DecimalSi }
    }

    /// A number of thousandths.
    pub fn from_milli(v: i64) -> Self {
        Self { nanos: i128::from(v) * 1_000_000, format: Format::DecimalSi }
    }

    /// A number of billionths.
    pub fn from_nano(v: i64) -> Self {
        Self { nanos: v.into(), format: Format::DecimalSi }
    }

    /// An integer in the notation of powers of two.
    pub fn binary(v: i64) -> Self {
        Self { nanos: i128::from(v) * NANO, format: Format::BinarySi }
    }

    /// Parses a quantity: `1.5Gi`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Err(Error::Format);
        }
        let (negative, rest) = match text.as_bytes()[0] {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        // Upstream reads no digits at all as zero.
        if fraction.contains('.') {
            return Err(Error::Format);
        }
        let (format, binary, exponent) = read_suffix(suffix)?;
        // value = digits × 10^(exponent − len(fraction)) × 1024^binary, in billionths.
        let zeros = whole.bytes().chain(fraction.bytes()).take_while(|c| *c == b'0').count();
        let count = whole.len() + fraction.len() - zeros;
        let mut scale = exponent - fraction.len() as i32 + 9;
        let mut nanos: i128 = 0;
        let mut lost = false;
        let mut too_big = false;
        for (i, c) in whole.bytes().chain(fraction.bytes()).skip(zeros).enumerate() {
            if nanos > i128::MAX / 16 {
                scale += (count - i) as i32;
                lost = true;
                break;
            }
            nanos = nanos * 10 + i128::from(c - b'0');
        }
        for _ in 0..binary {
            match nanos.checked_mul(1024) {
                Some(n) => nanos = n,
                None => too_big = true,
            }
        }
        while scale > 0 && nanos != 0 && !too_big {
            match nanos.checked_mul(10) {
                Some(n) => nanos = n,
                None => too_big = true,
            }
            scale -= 1;
        }
        while scale < 0 && nanos != 0 {
            lost |= nanos % 10 != 0;
            nanos /= 10;
            scale += 1;
        }
        if lost || (scale < 0 && count > 0) {
            nanos += 1;
        }
        let max = if format == Format::BinarySi { MAX_BINARY } else { MAX_DECIMAL };
        if too_big || nanos > max {
            nanos = max;
        }
        Ok(Self { nanos: if negative { -nanos } else { nanos }, format })
    }

    /// Whole units, rounded up.
    pub fn value(&self) -> i64 {
        ceil(self.nanos, NANO)
    }

    /// Thousandths, rounded up.
    pub fn milli_value(&self) -> i64 {
        ceil(self.nanos, 1_000_000)
    }

    /// Billionths, exact.
    pub fn nano_value(&self) -> i128 {
        self.nanos
    }

    /// In whole thousandths, rounded up (away from zero).
    #[must_use]
    pub fn round_up_to_milli(self) -> Self {
        const MILLI: i128 = 1_000_000;
        let away = if self.nanos % MILLI == 0 { 0 } else { self.nanos.signum() };
        Self { nanos: (self.nanos / MILLI + away) * MILLI, ..self }
    }

    /// Whether it is zero.
    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// -1, 0 or 1.
    pub fn sign(&self) -> i32 {
        self.nanos.signum() as i32
    }

    /// Whether it has no fraction.
    pub fn is_integer(&self) -> bool {
        self.nanos % NANO == 0
    }

    /// Whether upstream's validation takes it for an integer: by its thousandths, rounded up, which wrap around in 64 bits.
    pub fn counts_as_integer(&self) -> bool {
        const MILLI: i128 = 1_000_000;
        let away = if self.nanos % MILLI == 0 { 0 } else { self.nanos.signum() };
        let milli = self.nanos / MILLI + away;
        // Such numbers have a suffix, with which upstream's product that does not fit is 0.
        let suffixed = self.format != Format::BinarySi && self.nanos % (NANO * NANO) == 0;
        let wrapped = milli as i64;
        (suffixed && i128::from(wrapped) != milli) || wrapped % 1000 == 0
    }

    /// The notation.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The same value in another notation.
    #[must_use]
    pub fn in_format(self, format: Format) -> Self {
        Self { format, ..self }
    }
}

impl std::ops::Add for Quantity {
    type Output = Self;
    /// A zero takes the other's format, as upstream's `Add`.
    fn add(self, other: Self) -> Self {
        let format = if self.nanos == 0 { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_add(other.nanos), format }
    }
}

impl std::ops::Sub for Quantity {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        let format = if self.nanos == 0 { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_sub(other.nanos), format }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

fn ceil(nanos: i128, unit: i128) -> i64 {
    let q = nanos.div_euclid(unit) + i128::from(nanos.rem_euclid(unit) != 0);
    q.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// The format, the power of 1024 and the power of 10 that a suffix stands for.
fn read_suffix(suffix: &str) -> Result<(Format, u32, i32), Error> {
    Ok(match suffix {
        "" => (Format::DecimalSi, 0, 0),
        "n" => (Format::DecimalSi, 0, -9),
        "u" => (Format::DecimalSi, 0, -6),
        "m" => (Format::DecimalSi, 0, -3),
        "k" => (Format::DecimalSi, 0, 3),
        "M" => (Format::DecimalSi, 0, 6),
        "G" => (Format::DecimalSi, 0, 9),
        "T" => (Format::DecimalSi, 0, 12),
        "P" => (Format::DecimalSi, 0, 15),
        "E" => (Format::DecimalSi, 0, 18),
        "Ki" => (Format::BinarySi, 1, 0),
        "Mi" => (Format::BinarySi, 2, 0),
        "Gi" => (Format::BinarySi, 3, 0),
        "Ti" => (Format::BinarySi, 4, 0),
        "Pi" => (Format::BinarySi, 5, 0),
        "Ei" => (Format::BinarySi, 6, 0),
        _ => {
            let signed = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
            let digits = signed.strip_prefix(['+', '-']).unwrap_or(signed);
            if !digits.bytes().all(|b| b.is_ascii_digit()) {
                return Err(Error::Format);
            }
            let exponent = suffix.strip_prefix(['e', 'E']).ok_or(Error::Suffix)?;
            let exponent: i32 = exponent.parse().map_err(|_| Error::Suffix)?;
            (Format::DecimalExponent, 0, exponent.clamp(-1000, 1000))
        }
    })
}

impl fmt::Display for Quantity {
    /// The canonical form: the largest suffix without a fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let whole = self.nanos % NANO == 0;
        if self.format == Format::BinarySi && whole && self.nanos.abs() >= 1024 * NANO {
            let mut value = self.nanos / NANO;
            let mut power = 0;
            while value % 1024 == 0 && power < 6 {
                value /= 1024;
                power += 1;
            }
            return write!(f, "{value}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][power]);
        }
        let (mut value, mut power) = (self.nanos, 0usize);
        while value % 1000 == 0 && power < 9 {
            value /= 1000;
            power += 1;
        }
        if self.format == Format::DecimalExponent {
            return match power as i32 * 3 - 9 {
                0 => write!(f, "{value}"),
                e => write!(f, "{value}e{e}"),
            };
        }
        write!(f, "{value}{}", ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][power])
    }
}

impl std::str::FromStr for Quantity {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self, Error> {
        Self::parse(s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clauses: R01.canonical
    #[test]
    fn canonical_form() {
        for (input, expect) in [
            ("0.5", "500m"),
            ("1000m", "1"),
            ("1024Ki", "1Mi"),
            ("1.5Gi", "1536Mi"),
            ("1e3", "1e3"),
            ("100000m", "100"),
            ("0", "0"),
            ("-1.5", "-1500m"),
            ("128974848", "128974848"),
            ("129e6", "129e6"),
            ("129M", "129M"),
            ("123Mi", "123Mi"),
            ("1Ki", "1Ki"),
            ("0.5Ki", "512"),
            ("1.1Ki", "1126400m"),
            ("0.0000000001", "1n"),
            ("1E", "1E"),
            ("12E3", "12e3"),
            ("+5", "5"),
            (".5", "500m"),
            ("5.", "5"),
            ("1000000Ki", "1000000Ki"),
            ("100", "100"),
            ("1000", "1k"),
            ("99999999999999999999", "99999999999999999999"),
            ("-99999999999999999999", "-99999999999999999999"),
            ("99999999999999999999m", "99999999999999999999m"),
            ("9223372036854775809e3", "9223372036854775809e3"),
            ("9Ei", "9223372036854775807"),
        ] {
            assert_eq!(Quantity::parse(input).unwrap().to_string(), expect, "{input}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for bad in ["", "a", "1x", "1.2.3", "1 ", "1KI"] {
            assert_eq!(Quantity::parse(bad).err(), Some(Error::Format), "{bad}");
        }
        for bad in ["1e", "1mi", "1e-", "1kk", "m3"] {
            assert_eq!(Quantity::parse(bad).err(), Some(Error::Suffix), "{bad}");
        }
        // As upstream, numbers need no digits.
        for zero in ["-", "+", ".", "e3", "m", "Ki"] {
            assert!(Quantity::parse(zero).unwrap().is_zero(), "{zero}");
        }
    }

    #[test]
    fn integers_are_those_of_upstream() {
        for (text, expected) in [
            ("1", true),
            ("0.9999", true),
            ("0.0001", false),
            ("1.5", false),
            ("9223372036854775", true),
            ("9223372036854776", false),
            ("9223372036854775807", true),
            ("99999999999999999999", false),
            ("8Ei", true),
            ("1E", true),
            ("9e20", true),
        ] {
            assert_eq!(Quantity::parse(text).unwrap().counts_as_integer(), expected, "{text}");
        }
    }

    #[test]
    fn values_round_up() {
        assert_eq!(Quantity::parse("1.1").unwrap().value(), 2);
        assert_eq!(Quantity::parse("100m").unwrap().milli_value(), 100);
        assert_eq!(Quantity::parse("1.5m").unwrap().round_up_to_milli().to_string(), "2m");
        assert_eq!(Quantity::parse("-1.5m").unwrap().round_up_to_milli().to_string(), "-2m");
        assert_eq!(Quantity::parse("7Ki").unwrap().round_up_to_milli().to_string(), "7Ki");
        assert_eq!(Quantity::parse("999E").unwrap().value(), i64::MAX);
        assert!(Quantity::parse("1Gi").unwrap() > Quantity::parse("1G").unwrap());
    }
}
