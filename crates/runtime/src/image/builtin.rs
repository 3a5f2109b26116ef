//! The demo image, made from the running program, so that a cluster can run a container without a registry.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{Error, Image, ImageConfig, ImageStore, Result, normalize};

/// Path of the program in the image, and the argument that makes it the demo.
const PROGRAM: &str = "/kemudi";
const COMMAND: &str = "demo-app";
/// Identifies the program file of an image.
const ORIGIN: &str = "kemudi.builtin.origin";

pub fn ensure(store: &ImageStore, name: &str, exe: &Path) -> Result<Image> {
    let full = normalize(name)?;
    // The file is opened once, so that a program that is replaced meanwhile is not mixed with its successor.
    let file = fs::File::open(exe).map_err(Error::io(exe.display().to_string()))?;
    let metadata = file.metadata().map_err(Error::io(exe.display().to_string()))?;
    let origin = format!("{}:{}:{}:{}", metadata.dev(), metadata.ino(), metadata.size(), metadata.mtime_nsec());
    let origin = format!("{origin}:{}", metadata.mtime());
    if let Some(image) = store.list().into_iter().find(|i| i.names.contains(&full))
        && image.config.labels.get(ORIGIN) == Some(&origin)
    {
        return Ok(image);
    }
    let writing = store.writing()?;
    let root = writing.incoming("builtin")?;
    let put = |source: &Path, target: &Path| -> Result<()> {
        let target = root.join(target.strip_prefix("/").unwrap_or(target));
        let what = || format!("{} -> {}", source.display(), target.display());
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(Error::io(what()))?;
        }
        let real = fs::canonicalize(source).unwrap_or_else(|_| source.to_owned());
        // A link costs nothing, but only works on the same file system.
        if fs::hard_link(&real, &target).is_err() {
            fs::copy(source, &target).map_err(Error::io(what()))?;
        }
        Ok(())
    };
    put(exe, Path::new(PROGRAM))?;
    for library in mapped_libraries()? {
        put(&library, &library)?;
    }
    // The path of the interpreter is fixed in the program and usually a link: /lib64/ld-linux-x86-64.so.2.
    if let Some(interpreter) = interpreter(exe) {
        let target = root.join(interpreter.strip_prefix("/").unwrap_or(&interpreter));
        if !target.exists() {
            put(&interpreter, &interpreter)?;
        }
    }
    let write =
        |path: &str, text: &str| -> Result<()> { fs::write(root.join(path), text).map_err(Error::io(path.to_owned())) };
    for directory in ["bin", "etc", "tmp", "root", "proc", "sys", "dev", "run", "var"] {
        fs::create_dir_all(root.join(directory)).map_err(Error::io(directory.to_owned()))?;
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).map_err(Error::io("tmp"))?;
    write("etc/passwd", "root:x:0:0:root:/root:/kemudi\nnobody:x:65534:65534:nobody:/:/kemudi\n")?;
    write("etc/group", "root:x:0:\nnogroup:x:65534:\n")?;
    write("etc/nsswitch.conf", "hosts: files dns\n")?;
    let config = ImageConfig {
        entrypoint: vec![PROGRAM.into(), COMMAND.into()],
        env: vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/".into()],
        labels: [(ORIGIN.to_owned(), origin)].into(),
        ..ImageConfig::default()
    };
    writing.adopt_directory(name, &root, config)
}

/// Shared objects that this process maps, under the paths the loader opened.
fn mapped_libraries() -> Result<Vec<PathBuf>> {
    let maps = fs::read_to_string("/proc/self/maps").map_err(Error::io("/proc/self/maps"))?;
    let mut libraries: Vec<PathBuf> = maps
        .lines()
        .filter_map(|l| l.find('/').map(|at| &l[at..]))
        .filter(|p| p.contains(".so") && !p.ends_with(" (deleted)"))
        .map(PathBuf::from)
        .collect();
    libraries.sort();
    libraries.dedup();
    Ok(libraries)
}

/// The program interpreter named in a 64-bit little-endian ELF file; `None` for static programs and other files.
fn interpreter(exe: &Path) -> Option<PathBuf> {
    use std::io::Read;
    let mut head = Vec::new();
    fs::File::open(exe).ok()?.take(64 * 1024).read_to_end(&mut head).ok()?;
    if head.get(..6)? != [0x7f, b'E', b'L', b'F', 2, 1] {
        return None;
    }
    let number = |at: usize, length: usize| -> Option<usize> {
        Some(head.get(at..at + length)?.iter().rev().fold(0, |n, b| n << 8 | *b as usize))
    };
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    const PT_INTERP: usize = 3;
    let entry = (0..count).map(|i| table + i * size).find(|at| number(*at, 4) == Some(PT_INTERP))?;
    let (offset, length) = (number(entry + 8, 8)?, number(entry + 32, 8)?);
    let name = head.get(offset..offset + length)?.split(|b| *b == 0).next()?;
    Some(PathBuf::from(std::str::from_utf8(name).ok()?))
}
