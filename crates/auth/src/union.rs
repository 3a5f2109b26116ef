//! The union authorizer: calls authorizers in order until one decides.

use crate::attributes::Attributes;
use crate::rbac::PolicyRule;
use crate::{Authorizer, Decision, User};
use async_trait::async_trait;
use std::sync::Arc;

/// Authorizers, called in order until one has an opinion.
pub struct Union(pub Vec<Arc<dyn Authorizer>>);

/// Reasons of authorizers without an opinion.
#[derive(Default)]
struct NoOpinions(Vec<String>);

impl NoOpinions {
    /// Returns the decision unless it is "no opinion".
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
        let mut undecided = NoOpinions::default();
        self.0.iter().find_map(|x| undecided.take(x.authorize(a))).unwrap_or_else(|| undecided.end())
    }

    async fn decide(&self, a: &Attributes) -> Decision {
        let mut undecided = NoOpinions::default();
        for x in &self.0 {
            if let Some(decided) = undecided.take(x.decide(a).await) {
                return decided;
            }
        }
        undecided.end()
    }

    fn rules(&self, user: &User, namespace: &str) -> Vec<PolicyRule> {
        self.0.iter().flat_map(|x| x.rules(user, namespace)).collect()
    }

    fn unlisted(&self, user: &User) -> Vec<&'static str> {
        self.0.iter().flat_map(|x| x.unlisted(user)).collect()
    }
}

/// Decides every request the same way.
pub struct Always(pub Decision);

impl Authorizer for Always {
    fn authorize(&self, _: &Attributes) -> Decision {
        self.0.clone()
    }

    fn rules(&self, _: &User, _: &str) -> Vec<PolicyRule> {
        if self.0.allowed() { everything().to_vec() } else { Vec::new() }
    }
}

/// Allows everything to `system:masters`.
pub struct Masters;

impl Authorizer for Masters {
    fn authorize(&self, a: &Attributes) -> Decision {
        if a.user.is_in(meta::user::GROUP_MASTERS) {
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
        let authorizer = |d: Decision| -> Arc<dyn Authorizer> { Arc::new(Always(d)) };
        let no = || authorizer(Decision::NoOpinion("no".into()));
        let check = |all: Vec<Arc<dyn Authorizer>>, expect: Decision| {
            assert_eq!(Union(all).authorize(&Attributes::default()), expect);
        };
        let (allow, deny) = (Decision::Allow("a".into()), Decision::Deny("d".into()));
        check(vec![no(), authorizer(allow.clone()), authorizer(deny.clone())], allow.clone());
        check(vec![no(), authorizer(deny.clone()), authorizer(allow)], deny);
        check(vec![no(), authorizer(Decision::NoOpinion(String::new())), no()], Decision::NoOpinion("no\nno".into()));
    }
}
