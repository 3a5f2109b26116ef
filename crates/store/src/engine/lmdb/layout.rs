//! The layout of records on disk.
//!
//! - `values`: revision, position (big-endian: an append) → a header, the key, the sealed value
//! - `index`: resource id, namespace, 0, name, 0, revision → position, size, kind: the versions of a key side by side
//! - `resources`: resource name → id
//! - `marks`: revision → the time at which it was written
//! - `meta`: `format`, `state`
//!
//! Invariant: every version in `values` is in `index` and the reverse; a record names the version that it replaced, so that
//! compaction need not search. Numbers are big-endian in keys and little-endian elsewhere.

use crate::engine::EngineError;

/// The format of new data. Data with a higher number is rejected.
pub(super) const FORMAT: u32 = 1;

/// Bytes of the header of a record in `values`.
const HEADER: usize = 25;
const PUT: u8 = 1;
const DELETE: u8 = 0;

/// Revision and position within its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    pub revision: u64,
    pub position: u32,
}

impl At {
    pub fn key(self) -> [u8; 12] {
        let mut key = [0; 12];
        key[..8].copy_from_slice(&self.revision.to_be_bytes());
        key[8..].copy_from_slice(&self.position.to_be_bytes());
        key
    }

    pub fn parse(key: &[u8]) -> Result<At, EngineError> {
        let revision = array(key, 0).map(u64::from_be_bytes);
        let position = array(key, 8).map(u32::from_be_bytes);
        match (revision, position) {
            (Some(revision), Some(position)) => Ok(At { revision, position }),
            _ => Err(damaged("a key of values")),
        }
    }
}

fn array<const N: usize>(bytes: &[u8], from: usize) -> Option<[u8; N]> {
    bytes.get(from..from + N)?.try_into().ok()
}

pub(super) fn damaged(what: &str) -> EngineError {
    EngineError::Corrupt(what.to_owned())
}

/// A record of `values`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub resource: u32,
    pub namespace: &'a str,
    pub name: &'a str,
    /// `None`: a deletion.
    pub value: Option<&'a [u8]>,
    /// The version that this one replaced, and its size as counted by [`Record::size`].
    pub previous: Option<(At, u32)>,
}

impl<'a> Record<'a> {
    /// Estimated bytes of the version on disk: both records.
    pub fn size(&self) -> u32 {
        let key = self.namespace.len() + self.name.len();
        (HEADER + 12 + 32 + 2 * key + self.value.map_or(0, <[u8]>::len)) as u32
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        out.clear();
        out.push(if self.value.is_some() { PUT } else { DELETE });
        out.extend(self.resource.to_le_bytes());
        let (at, size) = self.previous.unwrap_or((At { revision: 0, position: 0 }, 0));
        out.extend(at.revision.to_le_bytes());
        out.extend(at.position.to_le_bytes());
        out.extend(size.to_le_bytes());
        out.extend((self.namespace.len() as u16).to_le_bytes());
        out.extend((self.name.len() as u16).to_le_bytes());
        out.extend(self.namespace.as_bytes());
        out.extend(self.name.as_bytes());
        out.extend(self.value.unwrap_or_default());
    }

    pub fn parse(bytes: &'a [u8]) -> Result<Record<'a>, EngineError> {
        Record::parse_parts(bytes).ok_or_else(|| damaged("a record of values"))
    }

    fn parse_parts(bytes: &'a [u8]) -> Option<Record<'a>> {
        let resource = u32::from_le_bytes(array(bytes, 1)?);
        let revision = u64::from_le_bytes(array(bytes, 5)?);
        let position = u32::from_le_bytes(array(bytes, 13)?);
        let size = u32::from_le_bytes(array(bytes, 17)?);
        let namespace = usize::from(u16::from_le_bytes(array(bytes, 21)?));
        let name = usize::from(u16::from_le_bytes(array(bytes, 23)?));
        let rest = bytes.get(HEADER..)?;
        let (namespace, rest) = rest.split_at_checked(namespace)?;
        let (name, value) = rest.split_at_checked(name)?;
        Some(Record {
            resource,
            namespace: std::str::from_utf8(namespace).ok()?,
            name: std::str::from_utf8(name).ok()?,
            value: (*bytes.first()? == PUT).then_some(value),
            previous: (revision != 0).then_some((At { revision, position }, size)),
        })
    }
}

/// The key of a version in `index`.
pub(super) fn index_key(out: &mut Vec<u8>, resource: u32, namespace: &str, name: &str, revision: u64) {
    out.clear();
    out.extend(resource.to_be_bytes());
    out.extend(namespace.as_bytes());
    out.push(0);
    out.extend(name.as_bytes());
    out.push(0);
    out.extend(revision.to_be_bytes());
}

/// The key in `index` without its revision, and the revision.
pub(super) fn split_index_key(key: &[u8]) -> Result<(&[u8], u64), EngineError> {
    let (prefix, revision) = key.split_last_chunk::<8>().ok_or_else(|| damaged("a key of index"))?;
    Ok((prefix, u64::from_be_bytes(*revision)))
}

/// Resource id, namespace, name.
pub(super) fn parse_index_prefix(prefix: &[u8]) -> Result<(u32, &str, &str), EngineError> {
    let parse = || {
        let (resource, rest) = prefix.split_first_chunk::<4>()?;
        let mut parts = rest.split(|byte| *byte == 0);
        let namespace = std::str::from_utf8(parts.next()?).ok()?;
        let name = std::str::from_utf8(parts.next()?).ok()?;
        Some((u32::from_be_bytes(*resource), namespace, name))
    };
    parse().ok_or_else(|| damaged("a key of index"))
}

/// The value of a version in `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pointer {
    pub position: u32,
    pub size: u32,
    pub deleted: bool,
}

impl Pointer {
    pub fn bytes(self) -> [u8; 9] {
        let mut bytes = [0; 9];
        bytes[..4].copy_from_slice(&self.position.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.size.to_le_bytes());
        bytes[8] = u8::from(self.deleted);
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<Pointer, EngineError> {
        let position = array(bytes, 0).map(u32::from_le_bytes);
        let size = array(bytes, 4).map(u32::from_le_bytes);
        match (position, size, bytes.get(8)) {
            (Some(position), Some(size), Some(deleted)) => Ok(Pointer { position, size, deleted: *deleted != 0 }),
            _ => Err(damaged("a value of index")),
        }
    }
}

/// A number as stored in `meta` and `marks`.
pub(super) fn numbers<const N: usize>(numbers: [u64; N]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

pub(super) fn parse_numbers<const N: usize>(bytes: &[u8]) -> Result<[u64; N], EngineError> {
    let mut numbers = [0; N];
    for (at, number) in numbers.iter_mut().enumerate() {
        *number = array(bytes, at * 8).map(u64::from_le_bytes).ok_or_else(|| damaged("a record of meta"))?;
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_written() {
        let at = At { revision: 7, position: 3 };
        let full =
            Record { resource: 9, namespace: "default", name: "web", value: Some(b"{}"), previous: Some((at, 80)) };
        let bare = Record { resource: 0, namespace: "", name: "n", value: None, previous: None };
        for record in [full, bare] {
            let mut bytes = Vec::new();
            record.write(&mut bytes);
            assert_eq!(Record::parse(&bytes).unwrap(), record);
            for cut in 0..HEADER + record.namespace.len() + record.name.len() {
                assert!(Record::parse(&bytes[..cut]).is_err(), "cut at {cut}");
            }
        }
        assert_eq!(At::parse(&at.key()).unwrap(), at);
    }

    #[test]
    fn index_keys_sort_like_namespace_and_name() {
        let places = [("", "a"), ("", "b"), ("a", "z"), ("a", "z-1"), ("a-b", "a"), ("b", "")];
        let mut before = Vec::new();
        for (namespace, name) in places {
            for revision in [1, 2, 300] {
                let mut key = Vec::new();
                index_key(&mut key, 5, namespace, name, revision);
                assert!(before < key, "{namespace}/{name}@{revision}");
                let (prefix, parsed) = split_index_key(&key).unwrap();
                assert_eq!(parsed, revision);
                assert_eq!(parse_index_prefix(prefix).unwrap(), (5, namespace, name));
                before = key;
            }
        }
    }
}
