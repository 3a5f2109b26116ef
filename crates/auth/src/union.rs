//! Several authorizers, asked in order until one has made up its mind.

use crate::attributes::Attributes;
use crate::rbac::PolicyRule;
use crate::{Authorizer, Decision, User};
use async_trait::async_trait;
use std::sync::Arc;

pub struct Union(pub Vec<Arc<dyn Authorizer>>);

/// What those said who left it open.
#[derive(Default)]
struct Open(Vec<String>);

impl Open {
    /// The decision, if it is one.
    fn take(&mut self, d: Decision) -> Option<Decision> {
        match d {
            Decision::NoOpinion(why) => {
                self.0.extend(Some(why).filter(|w| !w.is_empty()));
                None
            }
            decided => Some(decided),
        }
    }

    fn end(self) -> Decision {
        Decision::NoOpinion(self.0.join("\n"))
    }
}

#[async_trait]
impl Authorizer for Union {
    fn authorize(&self, a: &Attributes) -> Decision {
        let mut open = Open::default();
        self.0.iter().find_map(|x| open.take(x.authorize(a))).unwrap_or_else(|| open.end())
    }

    async fn decide(&self, a: &Attributes) -> Decision {
        let mut open = Open::default();
        for x in &self.0 {
            if let Some(decided) = open.take(x.decide(a).await) {
                return decided;
            }
        }
        open.end()
    }

    fn rules(&self, user: &User, namespace: &str) -> Vec<PolicyRule> {
        self.0.iter().flat_map(|x| x.rules(user, namespace)).collect()
    }

    fn unlisted(&self, user: &User) -> Vec<&'static str> {
        self.0.iter().flat_map(|x| x.unlisted(user)).collect()
    }
}

/// Says the same of everything.
pub struct Always(pub Decision);

impl Authorizer for Always {
    fn authorize(&self, _: &Attributes) -> Decision {
        self.0.clone()
    }

    fn rules(&self, _: &User, _: &str) -> Vec<PolicyRule> {
        if self.0.allowed() { everything().to_vec() } else { Vec::new() }
    }
}

/// The owners of the cluster may do everything, whoever else decides.
pub struct Masters;

impl Authorizer for Masters {
    fn authorize(&self, a: &Attributes) -> Decision {
        if a.user.is_in(crate::user::GROUP_MASTERS) {
            return Decision::Allow(String::new());
        }
        Decision::NoOpinion(String::new())
    }
}

fn everything() -> [PolicyRule; 2] {
    let all = || vec!["*".to_owned()];
    [
        PolicyRule { verbs: all(), groups: all(), resources: all(), ..PolicyRule::default() },
        PolicyRule { verbs: all(), urls: all(), ..PolicyRule::default() },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_decides_decides() {
        let says = |d: Decision| -> Arc<dyn Authorizer> { Arc::new(Always(d)) };
        let no = || says(Decision::NoOpinion("no".into()));
        let check = |all: Vec<Arc<dyn Authorizer>>, expect: Decision| {
            assert_eq!(Union(all).authorize(&Attributes::default()), expect);
        };
        let (allow, deny) = (Decision::Allow("a".into()), Decision::Deny("d".into()));
        check(vec![no(), says(allow.clone()), says(deny.clone())], allow.clone());
        check(vec![no(), says(deny.clone()), says(allow)], deny);
        check(vec![no(), says(Decision::NoOpinion(String::new())), no()], Decision::NoOpinion("no\nno".into()));
    }
}
