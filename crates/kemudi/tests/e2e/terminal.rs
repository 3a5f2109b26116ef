//! Commands on a pseudo-terminal, as users see them; and copying from a hostile pod, which must do no harm.

use crate::handover::editor;
use crate::runner::Case;
use crate::story::{IMAGE, Story, text};
use nix::pty::{Winsize, openpty};
use serde_json::json;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

pub const TESTS: &[Case] = &[
    ("terminal::exec_with_a_terminal", exec_with_a_terminal),
    ("terminal::debug_with_a_terminal", debug_with_a_terminal),
    ("terminal::editors_own_the_terminal", editors_own_the_terminal),
    ("terminal::cp_keeps_to_its_directory", cp_keeps_to_its_directory),
];
/// Newer versions have the flag.
pub const NEW: &[Case] = &[("terminal::detaches_by_keys", detaches_by_keys)];
pub const OWN: &[Case] = &[
    ("terminal::atomic_apply_shows_progress", atomic_apply_shows_progress),
    ("terminal::atomic_apply_redraws_in_place", atomic_apply_redraws_in_place),
];

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// A program on a terminal of 30 lines and 100 columns.
struct Session {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<String>>,
    reader: std::thread::JoinHandle<()>,
}

impl Session {
    fn start(command: Command) -> Self {
        Self::start_on(100, command)
    }

    /// Starts a program on a terminal with the given number of columns.
    fn start_on(columns: u16, mut command: Command) -> Self {
        let size = Winsize { ws_row: 30, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let end = || pty.slave.try_clone().unwrap();
        let child = command.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        // Only the program holds its ends, so that the screen ends when it does.
        drop(command);
        drop(pty.slave);
        let keyboard = File::from(pty.master);
        let (mut from, screen) = (keyboard.try_clone().unwrap(), Arc::new(Mutex::new(String::new())));
        let shown = screen.clone();
        let reader = std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut some) {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&some[..n]));
            }
        });
        Self { child, keyboard, screen, reader }
    }

    fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn screen(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    #[track_caller]
    fn shows(&self, s: &Story, what: &str) {
        s.eventually(&format!("{what:?} on the screen"), || self.screen().contains(what).then_some(()));
    }

    fn ends(mut self) -> (i32, String) {
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        self.reader.join().unwrap();
        let screen = self.screen.lock().unwrap().clone();
        (code, screen)
    }
}

/// Clauses: P18.exec-tty P18.exec-resize P18.exec-interrupt P18.exec-tty-code
fn exec_with_a_terminal(s: &Story) {
    s.shell_pod("p", FOREVER, json!({}), json!({}));
    s.ready("p");
    let mut session = Session::start(s.command(&["exec", "-it", "p", "--", "sh"]));
    session.types("echo $((40+2)) there\n");
    session.shows(s, "42 there");
    // The size of the window arrives separately, a moment later.
    s.eventually("the size of the window", || {
        session.types("/bin/busybox stty size\n");
        std::thread::yield_now();
        s.eventually("an answer", || session.screen().contains("stty size").then_some(()));
        session.screen().contains("30 100").then_some(())
    });
    session.types("sleep 1000; echo woken $?\n");
    session.shows(s, "sleep 1000");
    s.eventually("the interrupt", || {
        session.types("\u{3}");
        session.types("echo after $((1+1))\n");
        session.screen().contains("after 2").then_some(())
    });
    session.types("exit 5\n");
    let (code, screen) = session.ends();
    assert_eq!(code, 5, "{screen}");
    assert!(screen.contains("command terminated with exit code 5"), "{screen}");
}

/// Clauses: P17.debug-tty
fn debug_with_a_terminal(s: &Story) {
    s.shell_pod("p", FOREVER, json!({}), json!({}));
    s.ready("p");
    s.file("custom.json", &json!({"volumeMounts": [{"name": "tools", "mountPath": "/bin"}]}).to_string());
    let image = format!("--image={IMAGE}");
    let line = ["debug", "-it", "p", &image, "--custom=custom.json", "--profile=general", "-c", "look", "--", "sh"];
    let mut session = Session::start(s.command(&line));
    s.eventually("a shell in the new container", || {
        session.types("echo $((40+2)) here\n");
        session.screen().contains("42 here").then_some(())
    });
    session.types("exit\n");
    let (_, screen) = session.ends();
    let pod = s.get("pods/p");
    let container = &pod["spec"]["ephemeralContainers"][0];
    assert_eq!(
        (&container["name"], &container["tty"], &container["stdin"]),
        (&json!("look"), &json!(true), &json!(true)),
        "{screen}"
    );
}

/// Clauses: A14.edit-terminal
fn editors_own_the_terminal(s: &Story) {
    s.ok(&["create", "configmap", "c", "--from-literal=a=1"]);
    let edit = |script: &str| {
        let mut c = s.command(&["edit", "configmap", "c"]);
        c.env("KUBE_EDITOR", editor(s, script));
        Session::start(c)
    };
    let mut session =
        edit("test -t 0 && test -t 1 && echo 'an editor:' && read line && sed -i \"s/a: \\\"1\\\"/a: $line/\" \"$1\"");
    session.shows(s, "an editor:");
    session.types("typed\n");
    let (code, screen) = session.ends();
    assert_eq!((code, &s.get("configmaps/c")["data"]["a"]), (0, &json!("typed")), "{screen}");
    assert!(screen.contains("configmap/c edited"), "{screen}");
    let (code, screen) = edit("exit 1").ends();
    assert!(code == 1 && screen.contains("there was a problem with the editor"), "{screen}");
    let (code, screen) = edit("true").ends();
    assert!(code == 0 && screen.contains("Edit cancelled, no changes made."), "{screen}");
    // A malformed file is opened again until it is saved unchanged.
    let (code, screen) =
        edit("if grep -q 'was not valid' \"$1\"; then touch came-back; else echo 'data: [' >> \"$1\"; fi").ends();
    assert!(
        code == 1 && screen.contains("no valid changes were saved") && screen.contains("A copy of your changes"),
        "{screen}"
    );
    assert!(s.dir.join("came-back").exists(), "{screen}");
    assert_eq!(s.get("configmaps/c")["data"]["a"], "typed");
}

/// The keys detach from the session, and the container continues undisturbed.
fn detaches_by_keys(s: &Story) {
    let script = "while read l; do echo heard $l; done; sleep 1000";
    s.shell_pod("p", script, json!({}), json!({"stdin": true, "tty": true}));
    s.ready("p");
    for (keys, typed) in [(&["--detach-keys=ctrl-x,q"][..], "\u{18}q"), (&[], "\u{10}\u{11}")] {
        let mut session = Session::start(s.command(&[&["attach", "-it", "p"], keys].concat()));
        s.eventually("an echo", || {
            session.types("hello\n");
            session.screen().contains("heard hello").then_some(())
        });
        session.types(typed);
        let (code, screen) = session.ends();
        assert_eq!(code, 0, "{keys:?}: {screen}");
        let c = &s.get("pods/p")["status"]["containerStatuses"][0];
        assert!(c["state"]["running"].is_object() && c["restartCount"] == 0, "{c}");
    }
}

/// The view of a line per object is redrawn in place; no line is wider than the terminal.
fn atomic_apply_redraws_in_place(s: &Story) {
    let long = "a-name-that-is-much-longer-than-the-terminal-is-wide";
    let pod = json!({"containers": [{"name": "c", "image": IMAGE}]});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": long},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod}},
    });
    s.file("all.yaml", &format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: one}}\n---\n{deployment}"));
    let (code, screen) = Session::start_on(40, s.command(&["apply", "--atomic", "-f", "all.yaml"])).ends();
    assert_eq!(code, 0, "{screen}");
    // The cursor moves up by the number of objects.
    let pictures: Vec<&str> = screen.split("\u{1b}[2A").collect();
    assert!(pictures.len() > 1, "{screen:?}");
    let rows = |picture: &str| -> Vec<String> {
        picture.split("\r\u{1b}[K").skip(1).map(|r| r.lines().next().unwrap_or_default().to_owned()).collect()
    };
    for picture in &pictures {
        let rows = rows(picture);
        assert_eq!(rows.len(), 2, "{picture:?}");
        assert!(rows.iter().all(|r| r.chars().count() < 40), "{rows:?}");
    }
    let last = rows(pictures.last().unwrap());
    assert_eq!(last[0], "✓ configmap/one is ready");
    assert!(last[1].starts_with("✓ deployment.apps/a-name-that"), "{last:?}");
}

/// Clauses: G03.view
fn atomic_apply_shows_progress(s: &Story) {
    let map = |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n---\n");
    s.file("all.yaml", &(map("one") + &map("two")));
    let (code, screen) = Session::start(s.command(&["apply", "--atomic", "-f", "all.yaml"])).ends();
    assert_eq!(code, 0, "{screen}");
    for name in ["configmap/one", "configmap/two"] {
        assert!(screen.contains(name), "{name}: {screen}");
    }
    // Confirmation is requested and given on the terminal.
    s.file("all.yaml", &(map("one") + &map("three")));
    let mut session = Session::start(s.command(&["apply", "--atomic", "--confirm", "-f", "all.yaml"]));
    session.shows(s, "three");
    session.types("n\n");
    let (code, screen) = session.ends();
    assert!(code == 1 && screen.contains("not confirmed, nothing was changed"), "{screen}");
    assert!(s.get("configmaps/three").is_null());
}

/// A pod with a `tar` that sends arbitrary archives.
fn cp_keeps_to_its_directory(s: &Story) {
    s.shell_pod("p", FOREVER, json!({}), json!({}));
    s.ready("p");
    s.file("evil/good", "good");
    s.file("evil/bad", "bad");
    std::os::unix::fs::symlink("../../outside", s.dir.join("evil/link")).unwrap();
    std::os::unix::fs::symlink("/", s.dir.join("evil/root")).unwrap();
    std::fs::create_dir_all(s.dir.join("outside")).unwrap();
    // One archive with the requested file, paths outside of the destination, and files behind links.
    let tar = |more: &[&str]| {
        let mut c = Command::new("tar");
        c.current_dir(&s.dir).args(["-P", "-C", "evil", "-f", "evil.tar"]).args(more);
        text(more, &c.output().unwrap());
    };
    tar(&["-c", "--transform", "s,^good$,tmp/got/good,", "good"]);
    tar(&["-r", "--transform", "s,^bad$,../../../climbed,", "bad"]);
    tar(&["-r", "--transform", "s,^bad$,tmp/got/../../../../climbed,", "bad"]);
    tar(&["-r", "--transform", "s,^link$,tmp/got/link,S", "link"]);
    tar(&["-r", "--transform", "s,^bad$,tmp/got/link/through,", "bad"]);
    tar(&["-r", "--transform", "s,^root$,tmp/got/root,S", "root"]);
    let far = s.dir.join("outside/far").display().to_string();
    tar(&["-r", "--transform", &format!("s,^bad$,tmp/got/root{far},"), "bad"]);
    tar(&["-r", "--transform", &format!("s,^bad$,{far},"), "bad"]);
    let archive = std::fs::read(s.dir.join("evil.tar")).unwrap();
    let mut c = s.command(&["exec", "-i", "p", "--", "dd", "of=/tmp/evil.tar"]);
    let mut child = c.stdin(std::process::Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&archive).unwrap();
    assert!(child.wait().unwrap().success());
    s.sh("p", "mkdir() { /bin/busybox mkdir \"$@\"; }; mkdir -p /usr/local/bin; echo '#!/bin/sh\nexec cat /tmp/evil.tar' > /usr/local/bin/tar; /bin/busybox chmod 755 /usr/local/bin/tar");
    s.file("in/keep", "");
    let o = s.k(&["cp", "p:/tmp/got", "in/here"]);
    let complaint = String::from_utf8_lossy(&o.stderr).into_owned();
    let mut outside: Vec<_> = std::fs::read_dir(s.dir.join("outside")).unwrap().collect();
    assert!(outside.pop().is_none(), "something was written outside: {complaint}");
    let mut climbed = s.dir.clone();
    while climbed.pop() {
        assert!(!climbed.join("climbed").exists(), "{}", climbed.display());
    }
    assert!(!s.dir.join("climbed").exists() && !s.dir.join("in/climbed").exists(), "{complaint}");
    assert_eq!(std::fs::read_to_string(s.dir.join("in/here/good")).unwrap(), "good", "{complaint}");
}
