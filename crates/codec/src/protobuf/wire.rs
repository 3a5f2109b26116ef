//! Varints, keys and lengths.

use super::Error;

/// Wire type of variable-length integers.
pub const VARINT: u8 = 0;
/// Wire type of 64-bit values.
pub const FIXED64: u8 = 1;
/// Wire type of strings, bytes and messages.
pub const BYTES: u8 = 2;
/// Wire type of 32-bit values.
pub const FIXED32: u8 = 5;

/// Appends a variable-length integer.
pub fn put_varint(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push((v & 0x7f) as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

/// Appends the key of a field: its number and wire type.
pub fn put_key(out: &mut Vec<u8>, field: u32, wire: u8) {
    put_varint(out, u64::from(field) << 3 | u64::from(wire));
}

/// Appends a field with an integer.
pub fn put_int(out: &mut Vec<u8>, field: u32, v: i64) {
    put_key(out, field, VARINT);
    put_varint(out, v as u64);
}

/// Appends a field with a string, bytes or an encoded message.
pub fn put_bytes(out: &mut Vec<u8>, field: u32, v: &[u8]) {
    put_key(out, field, BYTES);
    put_varint(out, v.len() as u64);
    out.extend_from_slice(v);
}

/// One field's value as it lies on the wire.
#[derive(Clone, Copy, Debug)]
pub enum Wire<'a> {
    /// A variable-length integer.
    Varint(u64),
    /// A 64-bit value.
    Fixed64(u64),
    /// A 32-bit value.
    Fixed32(u32),
    /// A string, bytes or an encoded message.
    Bytes(&'a [u8]),
}

impl<'a> Wire<'a> {
    /// The bytes of the value. Errors for another wire type.
    pub fn bytes(self, field: u32) -> Result<&'a [u8], Error> {
        match self {
            Self::Bytes(b) => Ok(b),
            _ => Err(Error::Invalid { field, what: "wire type" }),
        }
    }

    /// The integer of the value. Errors for another wire type.
    pub fn varint(self, field: u32) -> Result<u64, Error> {
        match self {
            Self::Varint(v) => Ok(v),
            _ => Err(Error::Invalid { field, what: "wire type" }),
        }
    }
}

/// Reads the fields of one message.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Reads a variable-length integer.
    pub fn varint(&mut self) -> Result<u64, Error> {
        let mut v = 0u64;
        for shift in (0..64).step_by(7) {
            let (&b, rest) = self.0.split_first().ok_or(Error::Truncated)?;
            self.0 = rest;
            v |= u64::from(b & 0x7f) << shift;
            if b & 0x80 == 0 {
                return Ok(v);
            }
        }
        Err(Error::Invalid { field: 0, what: "varint" })
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], Error> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(Error::Truncated)?;
        self.0 = rest;
        Ok(head)
    }

    /// The next field; `None` at the end.
    pub fn field(&mut self) -> Result<Option<(u32, Wire<'a>)>, Error> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let field = u32::try_from(key >> 3).map_err(|_| Error::Invalid { field: 0, what: "field number" })?;
        let value = match (key & 7) as u8 {
            VARINT => Wire::Varint(self.varint()?),
            FIXED64 => Wire::Fixed64(u64::from_le_bytes(self.take(8)?.try_into().map_err(|_| Error::Truncated)?)),
            FIXED32 => Wire::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().map_err(|_| Error::Truncated)?)),
            BYTES => {
                let n = usize::try_from(self.varint()?).map_err(|_| Error::Truncated)?;
                Wire::Bytes(self.take(n)?)
            }
            _ => return Err(Error::Invalid { field, what: "wire type" }),
        };
        Ok(Some((field, value)))
    }
}
