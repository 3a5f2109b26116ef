//! The algebra of sets.

use super::PathElement;
use std::cmp::Ordering;
use std::fmt;

/// A set of field paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    nodes: Vec<Node>,
}

/// A path element, whether the path that ends here is in the set, and what lies below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub element: PathElement,
    pub member: bool,
    pub children: Set,
}

impl Node {
    fn is_empty(&self) -> bool {
        !self.member && self.children.is_empty()
    }
}

impl Set {
    /// The empty set.
    pub const EMPTY: &'static Self = &Self { nodes: Vec::new() };

    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// A set of paths through named fields only: `[&["metadata", "name"], &["status"]]`.
    pub fn of_fields(paths: &[&[&str]]) -> Self {
        let mut s = Self::new();
        for p in paths {
            let path: Vec<PathElement> = p.iter().map(|f| PathElement::field(f)).collect();
            s.insert(&path);
        }
        s
    }

    /// Whether the set has no paths.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// From nodes in any order without repetitions.
    pub(crate) fn from_nodes(mut nodes: Vec<Node>) -> Self {
        nodes.retain(|n| !n.is_empty());
        if !nodes.is_sorted_by(|a, b| a.element < b.element) {
            nodes.sort_by(|a, b| a.element.cmp(&b.element));
            nodes.dedup_by(|b, a| {
                let same = a.element == b.element;
                if same {
                    a.member |= b.member;
                    a.children = std::mem::take(&mut a.children).union(std::mem::take(&mut b.children));
                }
                same
            });
        }
        nodes.shrink_to_fit();
        Self { nodes }
    }

    /// Whether the path itself is in the set.
    pub fn has(&self, path: &[PathElement]) -> bool {
        let Some((last, way)) = path.split_last() else { return false };
        let mut here = self;
        for e in way {
            match here.node(e) {
                Some(n) => here = &n.children,
                None => return false,
            }
        }
        here.node(last).is_some_and(|n| n.member)
    }

    pub(crate) fn node(&self, element: &PathElement) -> Option<&Node> {
        self.nodes.binary_search_by(|n| n.element.cmp(element)).ok().map(|i| &self.nodes[i])
    }

    pub(crate) fn field(&self, name: &str) -> Option<&Node> {
        let at = self.nodes.binary_search_by(|n| match &n.element {
            PathElement::Field(f) => (**f).cmp(name),
            _ => Ordering::Greater,
        });
        at.ok().map(|i| &self.nodes[i])
    }

    /// Adds a path.
    pub fn insert(&mut self, path: &[PathElement]) {
        let Some((first, rest)) = path.split_first() else { return };
        let i = match self.nodes.binary_search_by(|n| n.element.cmp(first)) {
            Ok(i) => i,
            Err(i) => {
                self.nodes.insert(i, Node { element: first.clone(), member: false, children: Self::new() });
                i
            }
        };
        if rest.is_empty() {
            self.nodes[i].member = true;
        } else {
            self.nodes[i].children.insert(rest);
        }
    }

    /// The paths that are in either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        if self.is_empty() {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        let mut nodes = Vec::with_capacity(self.nodes.len().max(other.nodes.len()));
        let (mut a, mut b) = (self.nodes.into_iter().peekable(), other.nodes.into_iter().peekable());
        loop {
            let order = match (a.peek(), b.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(x), Some(y)) => x.element.cmp(&y.element),
            };
            match order {
                Ordering::Less => nodes.extend(a.next()),
                Ordering::Greater => nodes.extend(b.next()),
                Ordering::Equal => {
                    if let (Some(x), Some(y)) = (a.next(), b.next()) {
                        let children = x.children.union(y.children);
                        nodes.push(Node { element: x.element, member: x.member || y.member, children });
                    }
                }
            }
        }
        Self { nodes }
    }

    /// All paths of many sets. Sets are joined in pairs, so that none is copied more often than their number has digits.
    #[must_use]
    pub fn union_all(mut sets: Vec<Self>) -> Self {
        while sets.len() > 1 {
            let mut rest = sets.into_iter();
            sets = std::iter::from_fn(|| rest.next().map(|a| a.union(rest.next().unwrap_or_default()))).collect();
        }
        sets.pop().unwrap_or_default()
    }

    /// The paths that are not in `other`. A path in `other` takes away itself, not what lies below it.
    #[must_use]
    pub fn difference(self, other: &Self) -> Self {
        self.without(other, false)
    }

    /// The paths that are not in `other` nor below a path of `other`.
    #[must_use]
    pub fn recursive_difference(self, other: &Self) -> Self {
        self.without(other, true)
    }

    fn without(self, other: &Self, below: bool) -> Self {
        if self.is_empty() || other.is_empty() {
            return self;
        }
        let mut nodes = self.nodes;
        nodes.retain_mut(|n| {
            if let Some(o) = other.node(&n.element) {
                if o.member && below {
                    return false;
                }
                n.member &= !o.member;
                n.children = std::mem::take(&mut n.children).without(&o.children, below);
            }
            !n.is_empty()
        });
        Self { nodes }
    }

    /// The paths that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let nodes = self
            .nodes
            .iter()
            .filter_map(|n| {
                let o = other.node(&n.element)?;
                let both = Node {
                    element: n.element.clone(),
                    member: n.member && o.member,
                    children: n.children.intersection(&o.children),
                };
                (!both.is_empty()).then_some(both)
            })
            .collect();
        Self { nodes }
    }

    /// Whether the two have a path in common.
    pub fn intersects(&self, other: &Self) -> bool {
        self.nodes
            .iter()
            .any(|n| other.node(&n.element).is_some_and(|o| n.member && o.member || n.children.intersects(&o.children)))
    }

    /// Whether every path is in `other` as well.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.nodes.iter().all(|n| {
            let there = other.node(&n.element);
            there.is_some_and(|o| (!n.member || o.member) && n.children.is_subset(&o.children))
        })
    }

    /// All paths: of one level first those that end there, then those that go on, as upstream iterates.
    pub fn paths(&self) -> Vec<Vec<PathElement>> {
        self.paths_within(usize::MAX)
    }

    /// The first paths, until they have this many bytes together; one more than fits. Many paths can begin with the same long
    /// element, so that all of them are much longer than the set.
    pub fn paths_within(&self, bytes: usize) -> Vec<Vec<PathElement>> {
        let mut out = Paths { found: Vec::new(), left: bytes };
        self.collect(&mut Vec::new(), 0, &mut out);
        out.found
    }

    /// How many paths there are.
    pub fn len(&self) -> usize {
        self.nodes.iter().map(|n| usize::from(n.member) + n.children.len()).sum()
    }

    fn collect(&self, prefix: &mut Vec<PathElement>, length: usize, out: &mut Paths) {
        for n in self.nodes.iter().filter(|n| n.member) {
            if out.left == 0 {
                return;
            }
            let mut p = prefix.clone();
            p.push(n.element.clone());
            out.left = out.left.saturating_sub(length + n.element.size() + 1);
            out.found.push(p);
        }
        for n in self.nodes.iter().filter(|n| !n.children.is_empty()) {
            if out.left == 0 {
                return;
            }
            prefix.push(n.element.clone());
            n.children.collect(prefix, length + n.element.size() + 1, out);
            prefix.pop();
        }
    }
}

struct Paths {
    found: Vec<Vec<PathElement>>,
    /// Bytes.
    left: usize,
}

/// One path a line.
impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for p in self.paths() {
            for e in p {
                write!(f, "{e}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
