//! Walks the entries of an untrusted tar archive.
//!
//! **Invariant.** What is read into memory for one entry (headers, GNU long names, pax records, maps of sparse files) is at most
//! [`MAX_HEADERS`] bytes. The limit counts what the tar library reads between the contents of two entries, so it applies to all
//! that the library treats as a header. Sparse files are refused: a small one can claim any size.

use std::cell::Cell;
use std::io::{self, Read};

/// Bytes between the contents of two entries.
const MAX_HEADERS: u64 = 1 << 20;

/// A reader with a limit of `left` bytes.
pub struct Limited<'a, R> {
    inner: R,
    left: &'a Cell<u64>,
}

impl<R: Read> Read for Limited<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 {
            return Err(too_large());
        }
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let length = self.inner.read(&mut buffer[..most])?;
        self.left.set(left - length as u64);
        Ok(length)
    }
}

fn too_large() -> io::Error {
    io::Error::other(format!("the headers of an entry (long names, pax records) take more than {MAX_HEADERS} bytes"))
}

/// Calls `visit` with every entry in order, until the end or the first error. `failed` converts errors of the archive.
pub fn each<R: Read, E>(
    reader: R,
    failed: impl Fn(io::Error) -> E,
    mut visit: impl FnMut(&mut tar::Entry<'_, Limited<'_, R>>) -> Result<(), E>,
) -> Result<(), E> {
    let left = Cell::new(MAX_HEADERS);
    let mut archive = tar::Archive::new(Limited { inner: reader, left: &left });
    for entry in archive.entries().map_err(&failed)? {
        let mut entry = entry.map_err(&failed)?;
        check(&entry).map_err(&failed)?;
        left.set(u64::MAX);
        visit(&mut entry)?;
        // The unread rest of its content does not count as headers of the next entry.
        io::copy(&mut entry, &mut io::sink()).map_err(&failed)?;
        left.set(MAX_HEADERS);
    }
    Ok(())
}

fn check<R: Read>(entry: &tar::Entry<'_, R>) -> io::Result<()> {
    use tar::EntryType::{GNULongLink, GNULongName, GNUSparse, XGlobalHeader, XHeader};
    match entry.header().entry_type() {
        GNUSparse => Err(io::Error::other("sparse files are not supported")),
        // Sparse files that the library leaves to its caller.
        GNULongLink | GNULongName | XGlobalHeader | XHeader if entry.size() > MAX_HEADERS => Err(too_large()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tar::EntryType;

    fn header(mut header: tar::Header, kind: EntryType, size: u64) -> Vec<u8> {
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_cksum();
        header.as_bytes().to_vec()
    }

    /// Walks an archive of 64 MiB and returns the error and the bytes read.
    fn read_of(start: &[u8]) -> (Option<String>, u64) {
        let mut rest = start.chain(io::repeat(b'1')).take(64 << 20);
        let walked = each(&mut rest, |e| e, |_| Ok(()));
        (walked.err().map(|e| e.to_string()), (64 << 20) - rest.limit())
    }

    #[test]
    fn headers_of_any_size_are_not_read_into_memory() {
        use EntryType::{GNULongLink, GNULongName, XGlobalHeader, XHeader};
        for make in [tar::Header::new_gnu, tar::Header::new_ustar, tar::Header::new_old] {
            for kind in [GNULongName, GNULongLink, XHeader, XGlobalHeader] {
                let (error, read) = read_of(&header(make(), kind, 1 << 30));
                let error = error.expect("it is refused");
                assert!(error.starts_with("the headers of an entry"), "{kind:?}: {error}");
                assert!(read <= MAX_HEADERS, "{kind:?}: {read} bytes");
            }
        }
        // An endless map of a sparse file.
        let mut sparse = tar::Header::new_gnu();
        sparse.as_gnu_mut().expect("a GNU header").set_is_extended(true);
        let (error, read) = read_of(&header(sparse, EntryType::GNUSparse, 0));
        assert!(error.is_some() && read <= MAX_HEADERS, "{error:?}: {read} bytes");
    }

    /// Unread content does not count as a header.
    #[test]
    fn contents_do_not_count() {
        let mut archive = Vec::new();
        for size in [3 << 20, 0, 5 << 20] {
            archive.extend(header(tar::Header::new_gnu(), EntryType::Regular, size));
            archive.resize(archive.len() + size as usize, 1);
        }
        archive.resize(archive.len() + 1024, 0);
        let mut sizes = Vec::new();
        let visit = |entry: &mut tar::Entry<'_, Limited<'_, &[u8]>>| {
            sizes.push(entry.size());
            entry.read_exact(&mut [0; 100][..entry.size().min(100) as usize])
        };
        each(archive.as_slice(), |e| e, visit).expect("walks");
        assert_eq!(sizes, [3 << 20, 0, 5 << 20]);
    }
}
