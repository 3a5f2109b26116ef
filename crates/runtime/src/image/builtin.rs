//! The demo image, made from the running program, so that a cluster can run a container without a registry.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use elf::ElfStream;
use elf::abi::{DT_NEEDED, PT_INTERP};
use elf::endian::AnyEndian;

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
        && image.pinned
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
            let modified = fs::metadata(source).and_then(|m| m.modified()).map_err(Error::io(what()))?;
            set_modified(&target, modified).map_err(Error::io(what()))?;
        }
        Ok(())
    };
    put(exe, Path::new(PROGRAM))?;
    for library in libraries(exe)? {
        put(&library, &library)?;
    }
    // The path of the interpreter is fixed in the program and usually a link: /lib64/ld-linux-x86-64.so.2.
    if let Some(interpreter) = interpreter(exe) {
        let target = root.join(interpreter.strip_prefix("/").unwrap_or(&interpreter));
        if !target.exists() {
            put(&interpreter, &interpreter)?;
        }
    }
    // The id of the image depends on the times of files, and nodes write these at different times.
    let write = |path: &str, text: &str| -> Result<()> {
        let written = fs::write(root.join(path), text).and_then(|()| set_modified(&root.join(path), UNIX_EPOCH));
        written.map_err(Error::io(path.to_owned()))
    };
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
    writing.adopt_directory(name, &root, config, true)
}

fn set_modified(path: &Path, time: SystemTime) -> io::Result<()> {
    fs::File::options().write(true).open(path)?.set_modified(time)
}

/// The shared objects that a program needs, under the paths the loader opened for this process. Others that are mapped, such as the
/// modules by which the C library looks up users and hosts, differ from process to process.
fn libraries(exe: &Path) -> Result<Vec<PathBuf>> {
    let maps = fs::read_to_string("/proc/self/maps").map_err(Error::io("/proc/self/maps"))?;
    let mapped: BTreeSet<&Path> = maps.lines().filter_map(|l| l.find('/').map(|at| Path::new(&l[at..]))).collect();
    // The loader opened a file of this name, or a link of this name to what is mapped.
    let opened = |name: &str| {
        let places = mapped.iter().map(|path| (path, path.with_file_name(name)));
        places.into_iter().find_map(|(path, place)| (place.canonicalize().ok()? == **path).then_some(place))
    };
    let mut found = BTreeSet::new();
    let mut unread = vec![exe.to_owned()];
    while let Some(path) = unread.pop() {
        for name in needed(&path) {
            if let Some(library) = opened(&name)
                && found.insert(library.clone())
            {
                unread.push(library);
            }
        }
    }
    Ok(found.into_iter().collect())
}

fn elf(path: &Path) -> Option<ElfStream<AnyEndian, fs::File>> {
    ElfStream::open_stream(fs::File::open(path).ok()?).ok()
}

/// The names of the shared objects that an ELF file needs; none for static programs and other files.
fn needed(path: &Path) -> Vec<String> {
    let names = || {
        let mut elf = elf(path)?;
        let dynamic = elf.dynamic().ok()??;
        let places: Vec<_> = dynamic.iter().filter(|d| d.d_tag == DT_NEEDED).map(|d| d.d_val()).collect();
        let (_, names) = elf.dynamic_symbol_table().ok()??;
        let name = |at| names.get(usize::try_from(at).ok()?).ok().map(str::to_owned);
        Some(places.into_iter().filter_map(name).collect())
    };
    names().unwrap_or_default()
}

/// The program interpreter named in an ELF file; `None` for static programs and other files.
fn interpreter(exe: &Path) -> Option<PathBuf> {
    let elf = elf(exe)?;
    let segment = elf.segments().iter().find(|s| s.p_type == PT_INTERP)?;
    let mut name = vec![0; usize::try_from(segment.p_filesz).ok().filter(|n| *n < 4096)?];
    fs::File::open(exe).ok()?.read_exact_at(&mut name, segment.p_offset).ok()?;
    Some(PathBuf::from(std::str::from_utf8(name.split(|b| *b == 0).next()?).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module that is loaded later was in the images of some processes: the same image had two ids.
    #[test]
    fn the_libraries_of_a_program_are_those_that_it_needs() {
        let exe = std::env::current_exe().unwrap();
        assert!(needed(&exe).iter().any(|name| name.starts_with("libc.so")), "{:?}", needed(&exe));
        let found = libraries(&exe).unwrap();
        assert!(found.iter().all(|p| p.is_absolute()) && found.iter().any(|p| p.ends_with("libc.so.6")), "{found:?}");
        assert!(libraries(Path::new("/proc/self/maps")).unwrap().is_empty());
        assert!(interpreter(&exe).unwrap().exists());
        assert_eq!(interpreter(Path::new("/bin/busybox")).filter(|p| !p.exists()), None);
    }
}
