//! Rewrites streamed bodies, compressed or not.

use super::html::Rewriter;
use super::links::Origin;
use crate::body::{Body, Change};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::{DeflateDecoder, DeflateEncoder, GzDecoder, GzEncoder};
use std::io::{self, Write};

/// Compressed bytes to decode at a time: bounds the decoded output in memory.
const PIECE: usize = 4 << 10;

/// The content encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    None,
    Gzip,
    Deflate,
}

/// A body with rewritten links, in its original encoding.
pub fn rewritten(body: Body, origin: Origin, coding: Coding) -> Body {
    Body::relay_changed(body, Changing::new(origin, coding))
}

/// Decodes, rewrites and encodes again.
struct Changing {
    unpack: Unpack,
    links: Rewriter<Box<dyn Fn(&str) -> String + Send + Sync>>,
    pack: Pack,
}

enum Unpack {
    None,
    Gzip(Box<GzDecoder<Vec<u8>>>),
    Deflate(Box<DeflateDecoder<Vec<u8>>>),
}

enum Pack {
    None,
    Gzip(Box<GzEncoder<Vec<u8>>>),
    Deflate(Box<DeflateEncoder<Vec<u8>>>),
}

impl Changing {
    fn new(origin: Origin, coding: Coding) -> Self {
        let (unpack, pack) = match coding {
            Coding::None => (Unpack::None, Pack::None),
            Coding::Gzip => (
                Unpack::Gzip(Box::new(GzDecoder::new(Vec::new()))),
                Pack::Gzip(Box::new(GzEncoder::new(Vec::new(), Compression::fast()))),
            ),
            Coding::Deflate => (
                Unpack::Deflate(Box::new(DeflateDecoder::new(Vec::new()))),
                Pack::Deflate(Box::new(DeflateEncoder::new(Vec::new(), Compression::fast()))),
            ),
        };
        Self { unpack, links: Rewriter::new(Box::new(move |link: &str| origin.rewrite(link))), pack }
    }

    fn packed(&mut self, plain: Vec<u8>) -> io::Result<Bytes> {
        Ok(match &mut self.pack {
            Pack::None => plain,
            Pack::Gzip(e) => {
                e.write_all(&plain)?;
                std::mem::take(e.get_mut())
            }
            Pack::Deflate(e) => {
                e.write_all(&plain)?;
                std::mem::take(e.get_mut())
            }
        }
        .into())
    }
}

impl Change for Changing {
    const CHUNK: usize = PIECE;

    fn push(&mut self, piece: Bytes) -> io::Result<Bytes> {
        let plain = match &mut self.unpack {
            Unpack::None => piece.to_vec(),
            Unpack::Gzip(d) => {
                d.write_all(&piece)?;
                std::mem::take(d.get_mut())
            }
            Unpack::Deflate(d) => {
                d.write_all(&piece)?;
                std::mem::take(d.get_mut())
            }
        };
        let mut changed = Vec::with_capacity(plain.len() + 64);
        self.links.push(&plain, &mut changed);
        self.packed(changed)
    }

    fn finish(mut self) -> io::Result<Bytes> {
        let plain = match std::mem::replace(&mut self.unpack, Unpack::None) {
            Unpack::None => Vec::new(),
            Unpack::Gzip(d) => d.finish()?,
            Unpack::Deflate(d) => d.finish()?,
        };
        let mut last = Vec::new();
        self.links.push(&plain, &mut last);
        last.append(&mut self.links.finish());
        let mut out = self.packed(last)?.to_vec();
        out.extend(match self.pack {
            Pack::None => Vec::new(),
            Pack::Gzip(e) => e.finish()?,
            Pack::Deflate(e) => e.finish()?,
        });
        Ok(out.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    const PAGE: &str = "<html><a href=\"/a\">x</a> and <a href='http://elsewhere/b'>y</a></html>";
    const WANT: &str = "<html><a href=\"/root/proxy/a\">x</a> and <a href='http://elsewhere/b'>y</a></html>";

    fn origin() -> Origin {
        Origin { dialled: "10.0.0.1:80".into(), requested_host: String::new(), root: "/root/proxy".into() }
    }

    #[tokio::test]
    async fn pages_are_coded_as_they_came() {
        let plain = rewritten(Body::from(PAGE.to_owned()), origin(), Coding::None).collect().await.unwrap();
        assert_eq!(plain, WANT);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(PAGE.as_bytes()).unwrap();
        let packed = rewritten(Body::from(gzip.finish().unwrap()), origin(), Coding::Gzip).collect().await.unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut text).unwrap();
        assert_eq!(text, WANT);
        let mut deflate = DeflateEncoder::new(Vec::new(), Compression::default());
        deflate.write_all(PAGE.as_bytes()).unwrap();
        let packed =
            rewritten(Body::from(deflate.finish().unwrap()), origin(), Coding::Deflate).collect().await.unwrap();
        let mut text = String::new();
        flate2::read::DeflateDecoder::new(&packed[..]).read_to_string(&mut text).unwrap();
        assert_eq!(text, WANT);
        assert!(rewritten(Body::from(b"no gzip".to_vec()), origin(), Coding::Gzip).collect().await.is_err());
    }
}
