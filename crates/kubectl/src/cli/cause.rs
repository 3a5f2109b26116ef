//! The command line as the cause of a change, which `--record` stores in an annotation.

use clap::{Arg, ArgAction, Command};
use std::ffi::OsString;

/// Flags whose values are secret.
const SECRET: [&str; 2] = ["token", "password"];

/// Returns the arguments that are no flags, and then the flags by their long names with their values, as upstream writes
/// them (`genericclioptions.RecordFlags`). `top` must have accepted `args`.
pub fn describe(args: &[OsString], top: &Command) -> String {
    let mut known: Vec<&Arg> = top.get_arguments().collect();
    let (mut words, mut flags) = (String::from("kubectl"), String::new());
    let mut rest = args.iter().skip(1).map(|a| a.to_string_lossy().into_owned());
    // Flags of subcommands may precede the names of these: collect the flags of all named commands.
    let mut command = top;
    for a in args.iter().skip(1) {
        if let Some(sub) = a.to_str().and_then(|a| command.find_subcommand(a)) {
            known.extend(sub.get_arguments());
            command = sub;
        }
    }
    let mut flag = |name: &str, value: &str| {
        let value = if SECRET.contains(&name) { "CLASSIFIED" } else { value };
        flags.push_str(&format!(" --{name}={value}"));
    };
    while let Some(word) = rest.next() {
        if word == "--" {
            rest.by_ref().for_each(|w| words.push_str(&format!(" {w}")));
        } else if let Some(long) = word.strip_prefix("--") {
            match long.split_once('=') {
                Some((name, value)) => flag(name, value),
                None => {
                    let takes = known.iter().find(|a| a.get_long() == Some(long)).is_some_and(|a| takes_next(a));
                    flag(long, &if takes { rest.next().unwrap_or_default() } else { "true".into() });
                }
            }
        } else if word.len() > 1 && word.starts_with('-') {
            let mut letters = word[1..].chars();
            while let Some(letter) = letters.next() {
                let found = known.iter().find(|a| a.get_short() == Some(letter));
                let short = letter.to_string();
                let name = found.and_then(|a| a.get_long()).unwrap_or(&short);
                let left = letters.as_str();
                match left.strip_prefix('=') {
                    Some(value) => flag(name, value),
                    None if !found.is_some_and(|a| takes_next(a)) => {
                        flag(name, "true");
                        continue;
                    }
                    None if left.is_empty() => flag(name, &rest.next().unwrap_or_default()),
                    None => flag(name, left),
                }
                break;
            }
        } else {
            words.push_str(&format!(" {word}"));
        }
    }
    words + &flags
}

fn takes_next(a: &Arg) -> bool {
    matches!(a.get_action(), ArgAction::Set | ArgAction::Append) && !a.is_require_equals_set()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_follow_the_arguments_with_long_names() {
        let top = crate::command();
        for (line, expected) in [
            (
                "set image deploy/web nginx=nginx:1.9 --record",
                "kubectl set image deploy/web nginx=nginx:1.9 --record=true",
            ),
            (
                "-n x set --record=t image -f a.yaml nginx=1 --all",
                "kubectl set image nginx=1 --namespace=x --record=t --filename=a.yaml --all=true",
            ),
            ("apply -Rfdir --record", "kubectl apply --recursive=true --filename=dir --record=true"),
            (
                "scale deploy web --replicas 3 -oyaml --record --token secret --password=x",
                "kubectl scale deploy web --replicas=3 --output=yaml --record=true --token=CLASSIFIED --password=CLASSIFIED",
            ),
            ("create -f - --record", "kubectl create --filename=- --record=true"),
            ("run a --image=b --record -- sh -c x", "kubectl run a sh -c x --image=b --record=true"),
            ("edit --output json pod/a --record", "kubectl edit pod/a --output=json --record=true"),
        ] {
            let args: Vec<OsString> = ["/bin/kubectl"].into_iter().chain(line.split(' ')).map(OsString::from).collect();
            assert_eq!(describe(&args, &top), expected, "{line}");
        }
    }
}
