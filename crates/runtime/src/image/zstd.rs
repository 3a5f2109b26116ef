//! Decompresses zstd, frame by frame.
//!
//! **Invariant.** A stream takes at most [`MAX_WINDOW`] bytes of memory, whatever window it requests.

use std::io::{self, BufRead, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// The largest window of a frame. Common tools use at most 8 MiB.
const MAX_WINDOW: u64 = 32 << 20;
/// Bytes that are decompressed at a time.
const CHUNK: usize = 128 << 10;

/// A reader of all frames of a stream, which skips those without content.
pub struct Frames<R> {
    source: R,
    decoder: FrameDecoder,
}

impl<R: BufRead> Frames<R> {
    pub fn new(source: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW);
        Self { source, decoder }
    }

    /// Begins the next frame. Returns `false` at the end of the stream.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let length = u64::from(length);
                    if io::copy(&mut (&mut self.source).take(length), &mut io::sink())? < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(invalid(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if buffer.is_empty() {
                return Ok(0);
            }
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            if !self.decoder.is_finished() {
                let step = BlockDecodingStrategy::UptoBytes(CHUNK);
                self.decoder.decode_blocks(&mut self.source, step).map_err(invalid)?;
            } else if !self.begin()? {
                return Ok(0);
            }
        }
    }
}

fn invalid(error: FrameDecoderError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    fn compressed(content: &[u8]) -> Vec<u8> {
        compress_to_vec(content, CompressionLevel::Fastest)
    }

    fn decompress(stream: &[u8]) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        Frames::new(stream).read_to_end(&mut content).map(|_| content)
    }

    #[test]
    fn frames_are_read_one_after_the_other() {
        let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"xyz"].concat();
        let large: Vec<u8> = (0..1_000_000_u32).flat_map(|n| (n / 3).to_le_bytes()).collect();
        let stream = [compressed(b"one "), skipped.clone(), compressed(&large), compressed(b""), skipped].concat();
        assert_eq!(decompress(&stream).unwrap(), [b"one ", large.as_slice()].concat());
        assert!(decompress(b"").unwrap().is_empty());
    }

    #[test]
    fn rejects_broken_streams_and_large_windows() {
        let stream = compressed(&[7; 100_000]);
        for length in [1, 5, stream.len() - 1] {
            assert!(decompress(&stream[..length]).is_err(), "{length} bytes");
        }
        assert!(decompress(&[stream.as_slice(), b"rest"].concat()).is_err());
        assert!(decompress(&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1]).is_err(), "a skipped frame that ends too early");
        // A window of 2^(10 + 30) bytes.
        let error = decompress(&[0x28, 0xb5, 0x2f, 0xfd, 0, 30 << 3, 1, 0, 0]).unwrap_err().to_string();
        assert!(error.to_lowercase().contains("window"), "{error}");
    }
}
