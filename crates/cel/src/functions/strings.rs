//! Strings: the standard functions and the strings extension, version 2 (`cel-go/ext/strings.go`). Positions count characters.

use super::standard::double_text;
use super::{Fault, Price, Result, Row, no_overload, row};
use crate::time;
use crate::value::{Opaque, Val};
use crate::work;
use std::ops::Range;

pub(super) const ROWS: &[Row] = &[
    row("contains", ".string,string:bool", Price::Within, |a| {
        pair(a, |s, t| {
            work::count(s.len());
            Ok(Val::Bool(s.contains(t)))
        })
    }),
    row("startsWith", ".string,string:bool", Price::Walk(1, 1.0), |a| pair(a, |s, t| Ok(Val::Bool(s.starts_with(t))))),
    row("endsWith", ".string,string:bool", Price::Walk(1, 1.0), |a| pair(a, |s, t| Ok(Val::Bool(s.ends_with(t))))),
    row("charAt", ".string,int:string", Price::Fixed(1), char_at),
    row("lowerAscii", ".string:string", Price::Walk(0, 1.0), |a| {
        with_text(a, |s| Ok(Val::string(s.to_ascii_lowercase())))
    }),
    row("upperAscii", ".string:string", Price::Walk(0, 1.0), |a| {
        with_text(a, |s| Ok(Val::string(s.to_ascii_uppercase())))
    }),
    row("trim", ".string:string", Price::Walk(0, 1.0), |a| with_text(a, |s| Ok(Val::string(s.trim())))),
    row("replace", ".string,string,string:string;.string,string,string,int:string", Price::Walk(0, 2.0), replace),
    row("split", ".string,string:list(string);.string,string,int:list(string)", Price::Walk(0, 2.0), split),
    row("join", ".list(string):string;.list(string),string:string", Price::Elements, join),
    row("substring", ".string,int:string;.string,int,int:string", Price::Walk(0, 1.0), substring),
    row("format", ".string,list(dyn):string", Price::Walk(0, 1.0), format),
    row("strings.quote", "string:string", Price::Walk(0, 1.0), |a| with_text(a, |s| Ok(Val::string(quote(s))))),
    row("jsonpatch.escapeKey", "string:string", Price::Walk(0, 1.0), |a| {
        with_text(a, |s| Ok(Val::string(s.replace('~', "~0").replace('/', "~1"))))
    }),
];

fn with_text<'a>(args: &[Val<'a>], f: impl Fn(&str) -> Result<'a>) -> Result<'a> {
    args[0].as_str().map_or_else(no_overload, |s| {
        work::count(s.len());
        f(s)
    })
}

fn pair<'a>(args: &[Val<'a>], f: impl Fn(&str, &str) -> Result<'a>) -> Result<'a> {
    match (args[0].as_str(), args[1].as_str()) {
        (Some(a), Some(b)) => f(a, b),
        _ => no_overload(),
    }
}

fn out_of_range(i: i64) -> Fault {
    format!("index out of range: {i}").into()
}

/// Bytes of the blocks in which characters are counted.
const BLOCK: usize = 256;

/// A string with indexes of its characters.
struct Positions<'s> {
    text: &'s str,
    /// Whether it is ASCII, so that indexes are those of bytes.
    ascii: bool,
}

impl<'s> Positions<'s> {
    fn new(text: &'s str) -> Self {
        work::scan(text.len());
        Self { text, ascii: text.is_ascii() }
    }

    /// The number of characters.
    fn len(&self) -> usize {
        if self.ascii {
            return self.text.len();
        }
        work::scan(self.text.len());
        self.text.chars().count()
    }

    /// The byte index of a character; the length for the index behind the last one. None beyond.
    fn byte(&self, position: usize) -> Option<usize> {
        if self.ascii {
            return Some(position).filter(|p| *p <= self.text.len());
        }
        // Counting characters in blocks is far faster than one by one.
        let (mut at, mut left) = (0, position);
        loop {
            let end = self.text.floor_char_boundary(at + BLOCK);
            let block = &self.text[at..end];
            work::scan(block.len());
            let count = block.chars().count();
            if left < count {
                return block.char_indices().nth(left).map(|(i, _)| at + i);
            }
            (at, left) = (end, left - count);
            if at == self.text.len() {
                return Some(at).filter(|_| left == 0);
            }
        }
    }

    /// The byte index of a character index in an expression. Errors if it is out of range.
    fn byte_index(&self, position: i64) -> std::result::Result<usize, Fault> {
        usize::try_from(position).ok().and_then(|p| self.byte(p)).ok_or_else(|| out_of_range(position))
    }

    /// The index of the character at a byte index.
    fn position(&self, byte: usize) -> usize {
        if self.ascii {
            return byte;
        }
        work::scan(byte);
        self.text[..byte].chars().count()
    }
}

fn char_at<'a>(args: &[Val<'a>]) -> Result<'a> {
    let (Some(s), Val::Int(i)) = (args[0].as_str(), &args[1]) else { return no_overload() };
    let at = Positions::new(s).byte_index(*i)?;
    Ok(Val::string(s[at..].chars().next().map(String::from).unwrap_or_default()))
}

/// The index of a substring, from the start or the end.
pub(super) fn index_of<'a>(args: &[Val<'a>], last: bool) -> Result<'a> {
    let (Some(s), Some(part)) = (args[0].as_str(), args[1].as_str()) else { return no_overload() };
    let s = Positions::new(s);
    let given = match args.get(2) {
        None => None,
        Some(Val::Int(i)) => Some(*i),
        Some(_) => return no_overload(),
    };
    if part.is_empty() {
        let end = || i64::try_from(s.len()).unwrap_or(i64::MAX);
        return Ok(Val::Int(given.unwrap_or_else(|| if last { end() } else { 0 })));
    }
    let given = given
        .map(|i| s.byte_index(i).ok().filter(|at| *at < s.text.len()).ok_or_else(|| out_of_range(i)))
        .transpose()?;
    work::count(s.text.len());
    let found = match (last, given) {
        (false, from) => s.text[from.unwrap_or(0)..].find(part).map(|at| at + from.unwrap_or(0)),
        (true, None) => s.text.rfind(part),
        // The substring may start at this index and end behind it.
        (true, Some(at)) => {
            let end = at.saturating_add(part.len()).min(s.text.len());
            s.text[..s.text.floor_char_boundary(end)].rfind(part)
        }
    };
    Ok(Val::Int(found.and_then(|at| i64::try_from(s.position(at)).ok()).unwrap_or(-1)))
}

fn limit(v: Option<&Val<'_>>) -> std::result::Result<i64, Fault> {
    match v {
        None => Ok(-1),
        Some(Val::Int(n)) => Ok(*n),
        Some(_) => Err(Fault::NoOverload),
    }
}

fn replace<'a>(args: &[Val<'a>]) -> Result<'a> {
    let (Some(s), Some(from), Some(to)) = (args[0].as_str(), args[1].as_str(), args[2].as_str()) else {
        return no_overload();
    };
    let n = limit(args.get(3))?;
    work::count(s.len());
    Ok(Val::string(match usize::try_from(n) {
        Ok(n) => s.replacen(from, to, n),
        Err(_) => s.replace(from, to),
    }))
}

fn split<'a>(args: &[Val<'a>]) -> Result<'a> {
    let (Some(s), Some(by)) = (args[0].as_str(), args[1].as_str()) else { return no_overload() };
    let n = usize::try_from(limit(args.get(2))?).unwrap_or(usize::MAX);
    work::count(s.len());
    if n == 0 {
        return Ok(Val::list(Vec::new()));
    }
    let parts: Vec<Val<'a>> = if by.is_empty() {
        let mut places: Vec<usize> = s.char_indices().map(|(i, _)| i).take(n).collect();
        places.push(s.len());
        let last = places.len().saturating_sub(2);
        let part = |(i, w): (usize, &[usize])| Val::string(if i == last { &s[w[0]..] } else { &s[w[0]..w[1]] });
        places.windows(2).enumerate().map(part).collect()
    } else {
        s.splitn(n, by).map(Val::string).collect()
    };
    Ok(Val::list(parts))
}

fn join<'a>(args: &[Val<'a>]) -> Result<'a> {
    let (Val::List(l), by) = (&args[0], args.get(1).map_or(Some(""), Val::as_str)) else { return no_overload() };
    let Some(by) = by else { return no_overload() };
    let mut out = String::new();
    for (i, v) in l.iter().enumerate() {
        if i > 0 {
            work::count(by.len());
            out.push_str(by);
        }
        if work::is_over() {
            break;
        }
        match v.as_str() {
            Some(s) => out.push_str(s),
            None => return no_overload(),
        }
    }
    Ok(Val::string(out))
}

fn substring<'a>(args: &[Val<'a>]) -> Result<'a> {
    let (Some(s), Val::Int(from)) = (args[0].as_str(), &args[1]) else { return no_overload() };
    let end = match args.get(2) {
        None => None,
        Some(Val::Int(n)) => Some(*n),
        Some(_) => return no_overload(),
    };
    if let Some(end) = end.filter(|end| from > end) {
        return Err(format!("invalid substring range. start: {from}, end: {end}").into());
    }
    let s = Positions::new(s);
    let Range { start, end } = s.byte_index(*from)?..end.map_or(Ok(s.text.len()), |n| s.byte_index(n))?;
    Ok(Val::string(&s.text[start..end]))
}

fn quote(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// `format`: `%s %d %f %e %b %x %X %o`, with precisions.
fn format<'a>(args: &[Val<'a>]) -> Result<'a> {
    let (Some(pattern), Val::List(values)) = (args[0].as_str(), &args[1]) else { return no_overload() };
    let mut out = String::new();
    let mut next = 0;
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        if chars.next_if_eq(&'%').is_some() {
            out.push('%');
            continue;
        }
        let mut precision = None;
        if chars.next_if_eq(&'.').is_some() {
            let mut digits = String::new();
            while let Some(d) = chars.next_if(char::is_ascii_digit) {
                digits.push(d);
            }
            let n: usize = digits.parse().map_err(|_| "error while parsing precision")?;
            if n > 100 {
                return Err(format!("precision {n} exceeds maximum allowed precision 100").into());
            }
            precision = Some(n);
        }
        let Some(clause) = chars.next() else { return Err("unexpected end of string".into()) };
        let v = values.get(next).ok_or_else(|| format!("index {next} out of range"))?;
        next += 1;
        out.push_str(&clause_text(clause, precision, &v)?);
    }
    Ok(Val::string(out))
}

fn clause_text(clause: char, precision: Option<usize>, v: &Val<'_>) -> std::result::Result<String, Fault> {
    let wrong = |allowed: &str| -> Fault {
        format!("error during formatting: {clause} clause can only be used on {allowed}, was given {}", v.type_name())
            .into()
    };
    match clause {
        's' => plain(v),
        'd' => match v {
            Val::Int(n) => Ok(n.to_string()),
            Val::Uint(n) => Ok(n.to_string()),
            Val::Double(d) if !d.is_finite() => Ok(double(*d)),
            _ => Err(wrong("integers")),
        },
        'f' | 'e' => {
            let d = match v {
                Val::Int(n) => *n as f64,
                Val::Uint(n) => *n as f64,
                Val::Double(d) => *d,
                _ => return Err(wrong("doubles")),
            };
            let p = precision.unwrap_or(6);
            if !d.is_finite() {
                return Ok(double(d));
            }
            Ok(if clause == 'f' { format!("{d:.p$}") } else { exponent(&format!("{d:.p$e}")) })
        }
        'b' => match v {
            Val::Int(n) => Ok(if *n < 0 { format!("-{:b}", n.unsigned_abs()) } else { format!("{n:b}") }),
            Val::Uint(n) => Ok(format!("{n:b}")),
            Val::Bool(b) => Ok(u8::from(*b).to_string()),
            _ => Err(wrong("integers and bools")),
        },
        'o' => match v {
            Val::Int(n) => Ok(if *n < 0 { format!("-{:o}", n.unsigned_abs()) } else { format!("{n:o}") }),
            Val::Uint(n) => Ok(format!("{n:o}")),
            _ => Err(wrong("integers")),
        },
        'x' | 'X' => {
            let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
            let text = match v {
                Val::Int(n) if *n < 0 => format!("-{:x}", n.unsigned_abs()),
                Val::Int(n) => format!("{n:x}"),
                Val::Uint(n) => format!("{n:x}"),
                Val::Str(s) => hex(s.as_str().as_bytes()),
                Val::Bytes(b) => hex(b),
                _ => return Err(wrong("integers, byte buffers, and strings")),
            };
            Ok(if clause == 'X' { text.to_uppercase() } else { text })
        }
        c => Err(format!("could not parse formatting clause: unrecognized formatting clause \"{c}\"").into()),
    }
}

fn double(d: f64) -> String {
    if d.is_nan() { "NaN".into() } else { if d > 0.0 { "Infinity" } else { "-Infinity" }.into() }
}

/// Writes an exponent as Go: with a sign and at least two digits.
fn exponent(text: &str) -> String {
    let Some((digits, e)) = text.split_once('e') else { return text.to_owned() };
    let (sign, e) = e.strip_prefix('-').map_or(('+', e), |e| ('-', e));
    format!("{digits}e{sign}{e:0>2}")
}

fn plain(v: &Val<'_>) -> std::result::Result<String, Fault> {
    if work::is_over() {
        return Err("operation cancelled".into());
    }
    let text = plain_text(v)?;
    work::count(8 + text.len());
    Ok(text)
}

fn plain_text(v: &Val<'_>) -> std::result::Result<String, Fault> {
    Ok(match v {
        Val::Null => "null".into(),
        Val::Bool(b) => b.to_string(),
        Val::Int(n) => n.to_string(),
        Val::Uint(n) => n.to_string(),
        Val::Double(d) if !d.is_finite() => double(*d),
        Val::Double(d) => double_text(*d),
        Val::Str(s) | Val::Type(s) => s.as_str().into(),
        Val::Bytes(b) => String::from_utf8_lossy(b).into_owned(),
        Val::Timestamp(t) => time::timestamp_text(*t),
        Val::Duration(d) => time::duration_text(*d),
        Val::List(l) => {
            let parts = l.iter().map(|v| plain(&v)).collect::<std::result::Result<Vec<_>, _>>()?;
            format!("[{}]", parts.join(", "))
        }
        Val::Map(m) => {
            let mut parts = Vec::new();
            for (k, v) in m.iter() {
                parts.push(format!("{}: {}", plain(&k)?, plain(&v)?));
            }
            parts.sort();
            format!("{{{}}}", parts.join(", "))
        }
        Val::Opaque(o) if matches!(**o, Opaque::Ip(_) | Opaque::Cidr(_)) => match &**o {
            Opaque::Ip(ip) => ip.to_string(),
            Opaque::Cidr(c) => c.to_string(),
            _ => String::new(),
        },
        v => {
            let all = "strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps";
            return Err(format!(
                "error during formatting: string clause can only be used on {all}, was given {}",
                v.type_name()
            )
            .into());
        }
    })
}
