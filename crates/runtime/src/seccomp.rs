//! System call filters in classic BPF, compiled from OCI profiles without a shared library.
//!
//! A filter is one list of comparisons, numbers in ascending order under a binary search, so a call is decided in a dozen steps.
//! Calls of another architecture are refused: a 32-bit entry would pass a list of 64-bit numbers.
//!
//! Left out: notifications to an agent (`SCMP_ACT_NOTIFY` is refused) and profiles' `architectures` beyond our own.

mod default_profile;
mod names;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::Seccomp;
use crate::host::CAPABILITIES;

/// A compiled filter: instructions of classic BPF, each packed as `code << 48 | jt << 40 | jf << 32 | k`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program(pub(crate) Vec<u64>);

impl Program {
    /// The packed instructions.
    pub fn instructions(&self) -> &[u64] {
        &self.0
    }

    /// Installs the filter on the calling thread, for good.
    pub(crate) fn install(&self) -> std::io::Result<()> {
        crate::sys::install_seccomp(&self.0)
    }

    /// Whether the filter allows a system call with these arguments.
    pub(crate) fn allows(&self, call: libc::c_long, arguments: [u64; 6]) -> bool {
        let number = u32::try_from(call).ok();
        let action = number.and_then(|number| self.action(number, arguments));
        matches!(action, Some(libc::SECCOMP_RET_ALLOW | libc::SECCOMP_RET_LOG))
    }

    /// Interprets the filter as the kernel does. `None` for a filter that [`compile`] does not generate.
    fn action(&self, number: u32, arguments: [u64; 6]) -> Option<u32> {
        let mut data = [0u8; 64];
        data[..4].copy_from_slice(&number.to_le_bytes());
        data[4..8].copy_from_slice(&AUDIT_ARCH.to_le_bytes());
        for (index, value) in arguments.iter().enumerate() {
            data[ARGUMENTS as usize + 8 * index..][..8].copy_from_slice(&value.to_le_bytes());
        }
        let (mut at, mut accumulator) = (0, 0u32);
        loop {
            let i = self.0.get(at)?;
            let (code, jt, jf, k) = ((i >> 48) as u16, (i >> 40) as u8, (i >> 32) as u8, *i as u32);
            // Jumps only go forward.
            at += 1;
            let branch = |condition: bool| usize::from(if condition { jt } else { jf });
            match code {
                LOAD => {
                    let word = data.get(k as usize..)?.first_chunk::<4>()?;
                    accumulator = u32::from_le_bytes(*word);
                }
                AND => accumulator &= k,
                RETURN => return Some(k),
                JUMP => at += k as usize,
                IF_EQUAL => at += branch(accumulator == k),
                IF_GREATER => at += branch(accumulator > k),
                IF_NOT_LESS => at += branch(accumulator >= k),
                _ => return None,
            }
        }
    }
}

/// Why a profile cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not JSON, or not in the form of a profile.
    #[error("not a profile: {0}")]
    Json(#[from] serde_json::Error),
    /// The action does not exist, or is not supported.
    #[error("unknown action {0:?}")]
    Action(String),
    /// The operator of a comparison does not exist.
    #[error("unknown comparison {0:?}")]
    Comparison(String),
    /// A comparison has an argument that no system call has.
    #[error("argument {0} (system calls have 0 to 5)")]
    Argument(u32),
    /// The filter has more instructions than the kernel takes.
    #[error("the profile needs {0} instructions, the kernel takes 4096")]
    TooLong(usize),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    default_action: String,
    #[serde(default)]
    default_errno_ret: Option<u32>,
    #[serde(default)]
    syscalls: Vec<Entry>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default)]
    names: Vec<String>,
    action: String,
    #[serde(default)]
    errno_ret: Option<u32>,
    #[serde(default)]
    args: Option<Vec<Argument>>,
    #[serde(default)]
    includes: Option<Condition>,
    #[serde(default)]
    excludes: Option<Condition>,
}

/// Conditions of an entry (Docker's extension of the format).
#[derive(Clone, Debug, Default, Deserialize)]
struct Condition {
    #[serde(default)]
    caps: Vec<String>,
    #[serde(default)]
    arches: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Argument {
    index: u32,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

/// A rule for a call: the action if all comparisons hold.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    action: u32,
    comparisons: Vec<Comparison>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Comparison {
    argument: u32,
    operator: Operator,
    value: u64,
    mask: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Compiles a profile; `None` if nothing is filtered. `capabilities` are those of the container, by number: some calls are allowed
/// with a capability.
pub fn compile(profile: &Seccomp, capabilities: &[u8]) -> Option<Result<Program, Error>> {
    match profile {
        Seccomp::Unconfined => None,
        Seccomp::RuntimeDefault => Some(assemble(&default_profile::rules(capabilities), default_profile::DEFAULT)),
        Seccomp::Oci(text) => Some(from_json(text, capabilities)),
    }
}

fn from_json(text: &str, capabilities: &[u8]) -> Result<Program, Error> {
    let profile: Profile = serde_json::from_str(text)?;
    let default = action(&profile.default_action, profile.default_errno_ret)?;
    let mut rules: BTreeMap<u32, Vec<Rule>> = BTreeMap::new();
    for entry in &profile.syscalls {
        let rule = Rule {
            action: action(&entry.action, entry.errno_ret)?,
            comparisons: entry.args.iter().flatten().map(comparison).collect::<Result<_, _>>()?,
        };
        if !applies(entry, capabilities) {
            continue;
        }
        // Profiles contain names of other kernels and machines; unknown calls get the default action.
        for number in entry.names.iter().filter_map(|n| names::number(n)) {
            rules.entry(number).or_default().push(rule.clone());
        }
    }
    assemble(&rules, default)
}

fn applies(entry: &Entry, capabilities: &[u8]) -> bool {
    let has = |name: &String| {
        let short = name.strip_prefix("CAP_").unwrap_or(name);
        capabilities.iter().any(|c| CAPABILITIES.get(usize::from(*c)) == Some(&short))
    };
    let own = |arch: &String| {
        let (goarch, own) = (arch.as_str(), std::env::consts::ARCH);
        matches!((goarch, own), ("amd64", "x86_64") | ("arm64", "aarch64"))
    };
    let included = entry
        .includes
        .as_ref()
        .is_none_or(|c| c.caps.iter().all(has) && (c.arches.is_empty() || c.arches.iter().any(own)));
    let excluded = entry.excludes.as_ref().is_some_and(|c| c.caps.iter().any(has) || c.arches.iter().any(own));
    included && !excluded
}

fn action(name: &str, errno: Option<u32>) -> Result<u32, Error> {
    let errno = errno.unwrap_or(libc::EPERM as u32) & 0xffff;
    Ok(match name {
        "SCMP_ACT_ALLOW" => libc::SECCOMP_RET_ALLOW,
        "SCMP_ACT_ERRNO" => libc::SECCOMP_RET_ERRNO | errno,
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => libc::SECCOMP_RET_KILL_THREAD,
        "SCMP_ACT_KILL_PROCESS" => libc::SECCOMP_RET_KILL_PROCESS,
        "SCMP_ACT_TRAP" => libc::SECCOMP_RET_TRAP,
        "SCMP_ACT_TRACE" => libc::SECCOMP_RET_TRACE | errno,
        "SCMP_ACT_LOG" => libc::SECCOMP_RET_LOG,
        other => return Err(Error::Action(other.to_owned())),
    })
}

fn comparison(argument: &Argument) -> Result<Comparison, Error> {
    if argument.index > 5 {
        return Err(Error::Argument(argument.index));
    }
    let (operator, value, mask) = match argument.op.as_str() {
        "SCMP_CMP_EQ" => (Operator::Equal, argument.value, u64::MAX),
        "SCMP_CMP_NE" => (Operator::NotEqual, argument.value, u64::MAX),
        "SCMP_CMP_LT" => (Operator::Less, argument.value, u64::MAX),
        "SCMP_CMP_LE" => (Operator::LessOrEqual, argument.value, u64::MAX),
        "SCMP_CMP_GT" => (Operator::Greater, argument.value, u64::MAX),
        "SCMP_CMP_GE" => (Operator::GreaterOrEqual, argument.value, u64::MAX),
        // Here `value` is the mask and `valueTwo` the expected result.
        "SCMP_CMP_MASKED_EQ" => (Operator::Equal, argument.value_two, argument.value),
        other => return Err(Error::Comparison(other.to_owned())),
    };
    Ok(Comparison { argument: argument.index, operator, value, mask })
}

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_GREATER: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
const IF_NOT_LESS: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;

fn op(code: u16, jt: u8, jf: u8, k: u32) -> u64 {
    u64::from(code) << 48 | u64::from(jt) << 40 | u64::from(jf) << 32 | u64::from(k)
}

/// Offsets into `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;
/// On x86-64 a call with this bit is one of the x32 interface, with numbers of its own.
const X32: u32 = 0x4000_0000;

fn assemble(rules: &BTreeMap<u32, Vec<Rule>>, default: u32) -> Result<Program, Error> {
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut program = vec![
        op(LOAD, 0, 0, ARCHITECTURE),
        op(IF_EQUAL, 1, 0, AUDIT_ARCH),
        op(RETURN, 0, 0, refused),
        op(LOAD, 0, 0, NUMBER),
        op(IF_NOT_LESS, 0, 1, X32),
        op(RETURN, 0, 0, refused),
    ];
    let calls: Vec<(u32, &Vec<Rule>)> = rules.iter().map(|(n, r)| (*n, r)).collect();
    search(&mut program, &calls, default);
    if program.len() > 4096 { Err(Error::TooLong(program.len())) } else { Ok(Program(program)) }
}

/// Runs of neighbouring numbers with the same unconditional action become one leaf.
fn search(program: &mut Vec<u64>, calls: &[(u32, &Vec<Rule>)], default: u32) {
    if calls.len() <= 4 {
        for (number, rules) in calls {
            let mut body = Vec::new();
            judge(&mut body, rules, default);
            // A conditional jump reaches 255 instructions, an unconditional one any.
            match u8::try_from(body.len()) {
                Ok(length) => program.push(op(IF_EQUAL, 0, length, *number)),
                Err(_) => {
                    program.push(op(IF_EQUAL, 1, 0, *number));
                    program.push(op(JUMP, 0, 0, body.len() as u32));
                }
            }
            program.extend(body);
        }
        program.push(op(RETURN, 0, 0, default));
        return;
    }
    let (low, high) = calls.split_at(calls.len() / 2);
    let mut left = Vec::new();
    search(&mut left, low, default);
    // At or above the first of the upper half: over the lower half.
    program.push(op(IF_NOT_LESS, 0, 1, high[0].0));
    program.push(op(JUMP, 0, 0, left.len() as u32));
    program.extend(left);
    search(program, high, default);
}

/// The first rule whose comparisons all hold decides. An unconditional rule comes last, whatever the order in the profile.
fn judge(body: &mut Vec<u64>, rules: &[Rule], default: u32) {
    let (conditional, plain): (Vec<&Rule>, Vec<&Rule>) = rules.iter().partition(|r| !r.comparisons.is_empty());
    // Several conditional rules for one call are alternatives.
    for rule in conditional {
        // Built from the end, so that the distance to the next rule is known.
        let mut tests = vec![op(RETURN, 0, 0, rule.action)];
        for comparison in rule.comparisons.iter().rev() {
            let mut test = compare(comparison, tests.len());
            test.extend(tests);
            tests = test;
        }
        body.extend(tests);
    }
    body.push(op(RETURN, 0, 0, plain.last().map_or(default, |r| r.action)));
}

/// Continues if the comparison holds, else jumps over the `rest` instructions that follow.
fn compare(c: &Comparison, rest: usize) -> Vec<u64> {
    let offset = ARGUMENTS + 8 * c.argument;
    let (high, low) = ((c.value >> 32) as u32, c.value as u32);
    let (mask_high, mask_low) = ((c.mask >> 32) as u32, c.mask as u32);
    // Little endian, as both supported machines: the low half comes first.
    let mut out = vec![op(LOAD, 0, 0, offset + 4)];
    if mask_high != u32::MAX {
        out.push(op(AND, 0, 0, mask_high));
    }
    let mut tail = vec![op(LOAD, 0, 0, offset)];
    if mask_low != u32::MAX {
        tail.push(op(AND, 0, 0, mask_low));
    }
    let fail = rest as u8; // rules are short: six comparisons of seven instructions at most
    let load = tail.len() as u8;
    match c.operator {
        Operator::Equal => {
            out.push(op(IF_EQUAL, 0, load + 1 + fail, high));
            out.extend(tail);
            out.push(op(IF_EQUAL, 0, fail, low));
        }
        Operator::NotEqual => {
            out.push(op(IF_EQUAL, 0, load + 1, high));
            out.extend(tail);
            out.push(op(IF_EQUAL, fail, 0, low));
        }
        Operator::Greater | Operator::GreaterOrEqual => {
            let code = if c.operator == Operator::Greater { IF_GREATER } else { IF_NOT_LESS };
            out.push(op(IF_GREATER, load + 2, 0, high));
            out.push(op(IF_EQUAL, 0, load + 1 + fail, high));
            out.extend(tail);
            out.push(op(code, 0, fail, low));
        }
        Operator::Less | Operator::LessOrEqual => {
            let code = if c.operator == Operator::Less { IF_NOT_LESS } else { IF_GREATER };
            out.push(op(IF_GREATER, load + 2 + fail, 0, high));
            out.push(op(IF_EQUAL, 0, load + 1, high));
            out.extend(tail);
            out.push(op(code, fail, 0, low));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(program: &Program, number: u32, arguments: [u64; 6]) -> u32 {
        program.action(number, arguments).unwrap()
    }

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

    #[test]
    fn every_call_of_the_default_profile_is_judged() {
        let program = compile(&Seccomp::RuntimeDefault, &[]).unwrap().unwrap();
        let eperm = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        let enosys = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
        let judge = |call: libc::c_long, first: u64| run(&program, call as u32, [first, 0, 0, 0, 0, 0]);
        assert_eq!(judge(libc::SYS_read, 0), ALLOW);
        assert_eq!(judge(libc::SYS_futex, 0), ALLOW);
        assert_eq!(judge(libc::SYS_openat, 0), ALLOW);
        assert_eq!(judge(libc::SYS_mount, 0), eperm);
        assert_eq!(judge(libc::SYS_keyctl, 0), eperm);
        assert_eq!(judge(libc::SYS_clone3, 0), enosys);
        assert_eq!(judge(libc::SYS_clone, libc::SIGCHLD as u64), ALLOW);
        assert_eq!(judge(libc::SYS_clone, libc::CLONE_NEWUSER as u64), eperm);
        assert_eq!(judge(libc::SYS_socket, libc::AF_INET as u64), ALLOW);
        assert_eq!(judge(libc::SYS_socket, libc::AF_VSOCK as u64), eperm);
        assert_eq!(judge(libc::SYS_personality, 0xffff_ffff), ALLOW);
        assert_eq!(judge(libc::SYS_personality, 1), eperm);
        assert_eq!(run(&program, X32 | 1, [0; 6]), eperm, "the x32 interface is closed");
        let admin = CAPABILITIES.iter().position(|c| *c == "SYS_ADMIN").unwrap() as u8;
        let program = compile(&Seccomp::RuntimeDefault, &[admin]).unwrap().unwrap();
        assert_eq!(run(&program, libc::SYS_mount as u32, [0; 6]), ALLOW);
        assert_eq!(run(&program, libc::SYS_clone3 as u32, [0; 6]), ALLOW);
    }

    #[test]
    fn comparisons_hold_for_both_halves_of_an_argument() {
        let values = [0, 1, 5, 0xffff_ffff, 1 << 32, (1 << 32) + 5, u64::MAX];
        for (name, test) in [
            ("SCMP_CMP_EQ", (|a, b| a == b) as fn(u64, u64) -> bool),
            ("SCMP_CMP_NE", |a, b| a != b),
            ("SCMP_CMP_LT", |a, b| a < b),
            ("SCMP_CMP_LE", |a, b| a <= b),
            ("SCMP_CMP_GT", |a, b| a > b),
            ("SCMP_CMP_GE", |a, b| a >= b),
        ] {
            for limit in values {
                let profile = format!(
                    r#"{{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":38,"syscalls":[
                        {{"names":["read","nonsense"],"action":"SCMP_ACT_ALLOW","args":[
                            {{"index":1,"value":{limit},"op":"{name}"}}, {{"index":5,"value":7,"op":"SCMP_CMP_EQ"}}]}}]}}"#
                );
                let program = compile(&Seccomp::Oci(profile), &[]).unwrap().unwrap();
                for value in values {
                    let expect = if test(value, limit) { ALLOW } else { libc::SECCOMP_RET_ERRNO | 38 };
                    let found = run(&program, libc::SYS_read as u32, [0, value, 0, 0, 0, 7]);
                    assert_eq!(found, expect, "{value:#x} {name} {limit:#x}");
                    assert_eq!(
                        run(&program, libc::SYS_read as u32, [0, value, 0, 0, 0, 8]),
                        libc::SECCOMP_RET_ERRNO | 38
                    );
                }
            }
        }
    }

    #[test]
    fn what_a_filter_allows_is_known_beforehand() {
        let profile = r#"{"defaultAction":"SCMP_ACT_KILL","syscalls":[
            {"names":["read"],"action":"SCMP_ACT_LOG"},
            {"names":["clone"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":17,"op":"SCMP_CMP_EQ"}]}]}"#;
        let program = compile(&Seccomp::Oci(profile.into()), &[]).unwrap().unwrap();
        assert!(program.allows(libc::SYS_read, [0; 6]) && program.allows(libc::SYS_clone, [17, 0, 0, 0, 0, 0]));
        assert!(!program.allows(libc::SYS_clone, [0; 6]) && !program.allows(libc::SYS_write, [0; 6]));
        assert!(!Program(Vec::new()).allows(libc::SYS_read, [0; 6]), "a damaged one");
    }

    #[test]
    fn bad_profiles_are_refused_with_the_reason() {
        for (profile, message) in [
            ("{", "not a profile"),
            (r#"{"defaultAction":"SCMP_ACT_NOTIFY"}"#, "SCMP_ACT_NOTIFY"),
            (r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":[],"action":"x"}]}"#, "unknown action"),
            (
                r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":[],"action":"SCMP_ACT_LOG",
                    "args":[{"index":6,"value":0,"op":"SCMP_CMP_EQ"}]}]}"#,
                "argument 6",
            ),
        ] {
            let error = compile(&Seccomp::Oci(profile.into()), &[]).unwrap().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
