//! Limits of arguments, environments and mounts. A container that exceeds them is refused when it is created, since the kernel would
//! refuse every start.

use std::collections::BTreeMap;

use crate::api::{Error, Mount, MountSource, Result};
use crate::host::ArgumentLimits;
use crate::spec::{ContainerRecord, ContainerSummary};

/// Bytes of arguments, environments and mounts of all containers of a pod: they are files on the node's disk.
const MAX_OF_POD: usize = 16 << 20;
/// Bytes of a recorded mount besides its paths.
const MOUNT: usize = 128;

/// Errors as `execve` would.
pub fn check(argv: &[String], env: &[(String, String)], limits: ArgumentLimits) -> Result<(), String> {
    let lengths = || argv.iter().map(|a| a.len() + 1).chain(env.iter().map(|(k, v)| k.len() + v.len() + 2));
    if let Some(length) = lengths().find(|length| *length > limits.one) {
        let (length, most) = (length - 1, limits.one - 1);
        return Err(format!("argument list too long: an argument or variable has {length} bytes, and may have {most}"));
    }
    let all = lengths().map(|length| length + size_of::<usize>()).sum::<usize>();
    if all > limits.all {
        let most = limits.all;
        return Err(format!(
            "argument list too long: environment, command and arguments have {all} bytes, and may have {most}"
        ));
    }
    Ok(())
}

/// The bytes of a container in its pod's budget.
pub fn weight(argv: &[String], env: &[(String, String)], mounts: &[Mount]) -> usize {
    let source = |m: &Mount| match &m.source {
        MountSource::Host(path) => path.as_os_str().len(),
        MountSource::Below { root, path } => root.as_os_str().len() + path.as_os_str().len(),
        MountSource::Image { image, path } => image.len() + path.as_os_str().len(),
        MountSource::Tmpfs { .. } => 0,
    };
    let mounts = mounts.iter().map(|m| MOUNT + source(m) + m.target.as_os_str().len());
    let env = env.iter().map(|(k, v)| k.len() + v.len());
    argv.iter().map(String::len).chain(env).chain(mounts).sum()
}

/// Errors if a container exceeds the budget of its pod. Of each other container the newest attempt counts.
pub fn check_pod<'a>(new: &ContainerRecord, others: impl Iterator<Item = &'a ContainerSummary>) -> Result<()> {
    let mut newest: BTreeMap<&str, (u32, usize)> = BTreeMap::new();
    for other in others.filter(|c| c.config.name != new.config.name) {
        let attempt = (other.config.attempt, other.weight);
        newest.entry(&other.config.name).and_modify(|known| *known = attempt.max(*known)).or_insert(attempt);
    }
    let others = newest.values().map(|(_, weight)| weight).sum::<usize>();
    if others + new.weight > MAX_OF_POD {
        let message =
            format!("{} bytes, and {others} of the pod's other containers: a pod has {MAX_OF_POD} in all", new.weight);
        return Err(Error::Invalid { field: "environment, arguments and mounts", message });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_execve_takes_is_taken_to_the_byte() {
        let limits = ArgumentLimits { one: 128 << 10, all: 1 << 20 };
        let text = |length| "x".repeat(length);
        let variable = |length| vec![("A".to_owned(), text(length))];
        let one = limits.one - 1;
        assert_eq!(check(&[text(one)], &variable(one - 2), limits), Ok(()));
        for (argv, env) in [(vec![text(one + 1)], vec![]), (vec![], variable(one - 1))] {
            let error = check(&argv, &env, limits).unwrap_err();
            assert!(error.starts_with("argument list too long: an argument or variable has 131072 bytes"), "{error}");
        }
        // Each also takes a pointer and a NUL.
        let many = |count| vec![text(1015); count];
        assert_eq!(check(&many(1024), &[], limits), Ok(()));
        let error = check(&many(1025), &[], limits).unwrap_err();
        assert!(error.starts_with("argument list too long: environment") && error.contains("1049600"), "{error}");
    }
}
