//! Images that are imported from files while the cluster runs.

use crate::cluster::KEMUDI;
use crate::runner::Case;
use crate::story::{Story, text};
use serde_json::json;
use std::path::Path;
use std::process::{Command, Output, Stdio};

pub const TESTS: &[Case] = &[("images::come_from_archives", come_from_archives)];

fn run(program: &mut Command) -> String {
    let o = program.output().unwrap();
    assert!(o.status.success(), "{program:?}: {}", String::from_utf8_lossy(&o.stderr));
    String::from_utf8(o.stdout).unwrap()
}

/// An archive like `docker save` writes it, of one image that holds the tools of the tests, listed once for each name.
fn saved(s: &Story, names: &[&str]) -> std::path::PathBuf {
    let at = |file: &str| s.dir.join(file);
    run(Command::new("tar").arg("-C").arg(&s.cluster.directory).arg("-cf").arg(at("layer.tar")).arg("bin"));
    let sum = run(Command::new("sha256sum").arg(at("layer.tar")));
    let diff = format!("sha256:{}", sum.split(' ').next().unwrap());
    let config = json!({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [diff]},
        "config": {"Env": ["PATH=/bin", "FROM=archive"], "Cmd": ["sh", "-c", "echo $FROM; sleep 1000"]}});
    s.file("config.json", &config.to_string());
    let listed = |name: &&str| json!({"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]});
    let listed: Vec<_> = names.iter().map(listed).collect();
    s.file("manifest.json", &json!(listed).to_string());
    let parts = ["config.json", "manifest.json", "layer.tar"];
    run(Command::new("tar").arg("-C").arg(&s.dir).arg("-cf").arg(at("saved.tar")).args(parts));
    at("saved.tar")
}

fn image(s: &Story, args: &[&str]) -> Command {
    let mut c = Command::new(KEMUDI);
    c.arg("image").args(args).arg("--data-dir").arg(s.cluster.directory.join("data"));
    c
}

fn refused(o: &Output) -> String {
    assert!(!o.status.success(), "{}", text(&[], o));
    String::from_utf8_lossy(&o.stderr).into_owned()
}

/// Issue 16, B12.
fn come_from_archives(s: &Story) {
    let name = "example.test/tools:1";
    let archive = saved(s, &[name]);
    let file = archive.to_str().unwrap();
    // A pod that waits for the image gets it.
    let pod = json!({"metadata": {"name": "p"}, "spec": {"terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": name, "imagePullPolicy": "IfNotPresent"}]}});
    assert_eq!(run(&mut image(s, &["import", file])), format!("Loaded image: {name}\n"));
    s.create("pods", pod);
    s.ready("p");
    s.logged("p", "archive");
    let listed = run(&mut image(s, &["list"]));
    assert!(listed.starts_with("NAME ") && listed.lines().any(|l| l.starts_with(name)), "{listed}");
    // What is in use stays.
    let why = refused(&image(s, &["rm", name]).output().unwrap());
    assert!(why.contains("is in use by container"), "{why}");
    s.ok(&["delete", "pod", "p"]);
    s.gone("pods/p");
    // The node ends what the API has forgotten a moment later.
    let removed = s.eventually("the image to be free", || {
        let o = image(s, &["rm", name]).output().unwrap();
        o.status.success().then(|| String::from_utf8_lossy(&o.stdout).into_owned())
    });
    assert!(removed.starts_with(&format!("Removed: {name} (sha256:")), "{removed}");
    assert_eq!(refused(&image(s, &["rm", name]).output().unwrap()), format!("error: image {name:?} not found\n"));
    // So does what belongs to the node.
    let why = refused(&image(s, &["rm", "kemudi.local/demo"]).output().unwrap());
    assert_eq!(why, "error: image \"kemudi.local/demo\" is part of this node: it cannot be removed or replaced\n");
    let why = refused(&image(s, &["import", file, "--name", "kemudi.local/demo"]).output().unwrap());
    assert!(why.contains("image \"kemudi.local/demo:latest\" is part of this node"), "{why}");
    // From the standard input, and twice.
    for _ in 0..2 {
        let input = std::fs::File::open(&archive).unwrap();
        assert_eq!(
            run(image(s, &["import", "-", "--name", "other"]).stdin(Stdio::from(input))),
            "Loaded image: docker.io/library/other:latest\n"
        );
    }
    run(&mut image(s, &["rm", "other"]));
    // An image of two names is reported once for each.
    let twice = saved(s, &["example.test/b:1", "example.test/a:1"]);
    let loaded = run(&mut image(s, &["import", twice.to_str().unwrap()]));
    assert_eq!(loaded, "Loaded image: example.test/a:1\nLoaded image: example.test/b:1\n");
    run(&mut image(s, &["rm", "example.test/a:1", "example.test/b:1"]));
    // What is no image changes nothing.
    let before = run(&mut image(s, &["list"]));
    s.file("bad", "no archive");
    let bad = s.dir.join("bad");
    let why = refused(&image(s, &["import", bad.to_str().unwrap()]).output().unwrap());
    assert!(why.starts_with(&format!("error: {} is neither", bad.display())), "{why}");
    let missing = refused(&image(s, &["import", "/no/such/file"]).output().unwrap());
    assert_eq!(missing, "error: /no/such/file: No such file or directory (os error 2)\n");
    assert_eq!(run(&mut image(s, &["list"])), before);
    let nowhere = refused(&Command::new(KEMUDI).args(["image", "list", "--data-dir", "/no/such"]).output().unwrap());
    assert_eq!(nowhere, "error: /no/such: No such file or directory (os error 2)\n");
    assert!(!Path::new("/no/such").exists());
}
