//! Header blocks of SPDY/3: names and values with their lengths, compressed with one zlib stream per direction that begins with
//! a dictionary of the protocol.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use std::sync::LazyLock;

/// Maximum size and number of headers of a block. Larger ones end the connection: a few bytes may decompress to very many.
const MAX: usize = 16 * 1024;
const MAX_COUNT: usize = 64;

/// The entries of the dictionary that have a length prefix, separated by `|`.
const WORDS: &str = "options|head|post|put|delete|trace|accept|accept-charset|accept-encoding|accept-language|accept-ranges|\
age|allow|authorization|cache-control|connection|content-base|content-encoding|content-language|content-length|\
content-location|content-md5|content-range|content-type|date|etag|expect|expires|from|host|if-match|if-modified-since|\
if-none-match|if-range|if-unmodified-since|last-modified|location|max-forwards|pragma|proxy-authenticate|\
proxy-authorization|range|referer|retry-after|server|te|trailer|transfer-encoding|upgrade|user-agent|vary|via|warning|\
www-authenticate|method|get|status|200 OK|version|HTTP/1.1|url|public|set-cookie|keep-alive|origin";

/// The rest of the dictionary.
const TAIL: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden\
404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable\
Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT\
chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,public\
privatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut d = Vec::new();
    for w in WORDS.split('|') {
        put(&mut d, w);
    }
    d.extend_from_slice(TAIL.as_bytes());
    d
});

pub type Headers = Vec<(String, String)>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("inflating headers: {0}")]
    Inflate(#[from] flate2::DecompressError),
    #[error("deflating headers: {0}")]
    Deflate(#[from] flate2::CompressError),
    #[error("a header block ends too early")]
    Short,
    #[error("a header block is too long")]
    Long,
    #[error("a header is no text")]
    Text,
}

/// Reads the header blocks of one direction, in their order.
pub struct Reader(Decompress);

impl Reader {
    pub fn new() -> Self {
        Self(Decompress::new(true))
    }

    pub fn read(&mut self, block: &[u8]) -> Result<Headers, Error> {
        let mut plain = Vec::with_capacity(1024);
        let mut rest = block;
        loop {
            if plain.len() > MAX {
                return Err(Error::Long);
            }
            plain.reserve(1024);
            let before = self.0.total_in();
            let done = self.0.decompress_vec(rest, &mut plain, FlushDecompress::Sync);
            let used = usize::try_from(self.0.total_in() - before).map_err(|_| Error::Long)?;
            rest = rest.get(used..).ok_or(Error::Short)?;
            match done {
                Err(e) if e.needs_dictionary().is_some() => {
                    self.0.set_dictionary(&DICTIONARY)?;
                }
                Err(e) => return Err(e.into()),
                Ok(Status::StreamEnd) => break,
                Ok(_) if plain.len() < plain.capacity() => {
                    // Output space is left, so the input is consumed.
                    if rest.is_empty() || used == 0 {
                        break;
                    }
                }
                Ok(_) => {}
            }
        }
        parse(&plain)
    }
}

/// Writes the header blocks of one direction.
pub struct Writer(Compress);

impl Writer {
    pub fn new() -> Result<Self, Error> {
        let mut c = Compress::new(Compression::fast(), true);
        c.set_dictionary(&DICTIONARY)?;
        Ok(Self(c))
    }

    pub fn write(&mut self, headers: &[(String, String)]) -> Result<Vec<u8>, Error> {
        let mut plain = Vec::new();
        plain.extend_from_slice(&(headers.len() as u32).to_be_bytes());
        for (k, v) in headers {
            put(&mut plain, &k.to_ascii_lowercase());
            put(&mut plain, v);
        }
        let mut out = Vec::with_capacity(plain.len() + 64);
        let mut rest = &plain[..];
        loop {
            out.reserve(256);
            let before = self.0.total_in();
            self.0.compress_vec(rest, &mut out, FlushCompress::Sync)?;
            let used = usize::try_from(self.0.total_in() - before).map_err(|_| Error::Long)?;
            rest = rest.get(used..).ok_or(Error::Short)?;
            if rest.is_empty() && out.len() < out.capacity() {
                return Ok(out);
            }
        }
    }
}

fn put(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn parse(mut plain: &[u8]) -> Result<Headers, Error> {
    fn number(plain: &mut &[u8]) -> Result<usize, Error> {
        let (head, rest) = plain.split_first_chunk::<4>().ok_or(Error::Short)?;
        *plain = rest;
        usize::try_from(u32::from_be_bytes(*head)).map_err(|_| Error::Long)
    }
    fn text(plain: &mut &[u8]) -> Result<String, Error> {
        let length = number(plain)?;
        let (head, rest) = plain.split_at_checked(length).ok_or(Error::Short)?;
        *plain = rest;
        String::from_utf8(head.to_vec()).map_err(|_| Error::Text)
    }
    let count = number(&mut plain)?;
    if count > MAX_COUNT {
        return Err(Error::Long);
    }
    let mut out = Vec::new();
    for _ in 0..count {
        let name = text(&mut plain)?;
        let value = text(&mut plain)?;
        out.push((name, value));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dictionary_is_the_protocols() {
        // Adler-32 of the dictionary, which every stream that uses it contains.
        let (mut a, mut b) = (1u32, 0u32);
        for byte in DICTIONARY.iter() {
            a = (a + u32::from(*byte)) % 65_521;
            b = (b + a) % 65_521;
        }
        assert_eq!((DICTIONARY.len(), b << 16 | a), (1423, 0xe3c6_a7c2));
    }

    #[test]
    fn blocks_follow_each_other_in_one_stream() {
        let (mut w, mut r) = (Writer::new().unwrap(), Reader::new());
        let big = "x".repeat(12_000);
        for headers in [vec![], vec![("streamType", "stdin"), ("port", "80")], vec![("a", big.as_str())], vec![]] {
            let headers: Headers = headers.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            let lower: Headers = headers.iter().map(|(k, v)| (k.to_lowercase(), v.clone())).collect();
            assert_eq!(r.read(&w.write(&headers).unwrap()).unwrap(), lower);
        }
    }

    #[test]
    fn what_is_no_block_is_refused() {
        assert!(Reader::new().read(b"nonsense").is_err());
        assert!(Reader::new().read(b"").is_err());
        assert!(matches!(parse(&[0, 0, 0, 1, 0, 0, 0, 9, b'a']), Err(Error::Short)));
        assert!(matches!(parse(&[0xff, 0xff, 0xff, 0xff]), Err(Error::Long)), "so many headers");
        let bomb = vec![("a".to_owned(), "x".repeat(MAX * 2))];
        let block = Writer::new().unwrap().write(&bomb).unwrap();
        assert!(block.len() < 8 * 1024 && matches!(Reader::new().read(&block), Err(Error::Long)));
    }
}
