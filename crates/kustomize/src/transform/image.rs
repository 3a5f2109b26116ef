//! Changes images, tags and digests.

use super::Transform;
use crate::Error;
use crate::fields::{Create, visit};
use crate::go::go_struct;
use crate::kustomization::{FieldSpec, Image};
use crate::resources::Resources;
use meta::Value;
use regex::Regex;

go_struct! {
    Images "ImageTagTransformer" {
        image: Image = "imageTag",
        specs: Vec<FieldSpec> = "fieldSpecs",
    }
}

/// Splits an image into name, tag and digest. A colon before the first slash belongs to a registry port.
fn split(image: &str) -> (&str, &str, &str) {
    let from = image.find('/').unwrap_or(0);
    let find = |c: char| image[from..].find(c).map(|i| i + from);
    match (find('@'), find(':')) {
        (Some(at), Some(colon)) if colon < at => (&image[..colon], &image[colon + 1..at], &image[at + 1..]),
        (Some(at), _) => (&image[..at], "", &image[at + 1..]),
        (None, Some(colon)) => (&image[..colon], &image[colon + 1..], ""),
        (None, None) => (image, "", ""),
    }
}

impl Image {
    /// Returns the replacement of an image.
    fn change(&self, image: &str) -> String {
        let (name, tag, digest) = split(image);
        let name = if self.new_name.is_empty() { name } else { &self.new_name };
        let (tag, digest) = match (self.new_tag.as_str(), self.digest.as_str()) {
            ("", "") if !self.tag_suffix.is_empty() => (format!("{tag}{}", self.tag_suffix), ""),
            ("", "") => (tag.to_owned(), digest),
            (new, digest) => (new.to_owned(), digest),
        };
        let mut out = name.to_owned();
        for (mark, part) in [(':', tag.as_str()), ('@', digest)] {
            if !part.is_empty() {
                out.push(mark);
                out.push_str(part);
            }
        }
        out
    }
}

struct Changer<'a> {
    pattern: Regex,
    image: &'a Image,
}

impl Changer<'_> {
    fn set(&self, v: &mut Value) -> Result<(), Error> {
        match v {
            Value::Null => {}
            Value::Object(_) | Value::Array(_) => {
                return Err(Error::text("wrong node kind: expected ScalarNode"));
            }
            v => {
                let old = crate::resource::text(v);
                if self.pattern.is_match(&old) {
                    *v = self.image.change(&old).into();
                }
            }
        }
        Ok(())
    }

    /// Changes the images of all containers at any depth.
    fn change_all(&self, v: &mut Value) -> Result<(), Error> {
        match v {
            Value::Object(m) => {
                for (k, v) in m.iter_mut() {
                    self.change_all(v)?;
                    let Value::Array(containers) = v else { continue };
                    if k == "containers" || k == "initContainers" {
                        containers.iter_mut().filter_map(|c| c.get_mut("image")).try_for_each(|i| self.set(i))?;
                    }
                }
                Ok(())
            }
            Value::Array(items) => items.iter_mut().try_for_each(|i| self.change_all(i)),
            _ => Ok(()),
        }
    }
}

impl Transform for Images {
    fn apply(&self, all: &mut Resources) -> Result<(), Error> {
        const REST: &str = "(:[a-zA-Z0-9_.{}-]*)?(@sha256:[a-zA-Z0-9_.{}-]*)?$";
        // A name that is no valid pattern matches no image.
        let Ok(pattern) = Regex::new(&format!("^{}{REST}", self.image.name)) else { return Ok(()) };
        let changer = Changer { pattern, image: &self.image };
        let changed = |r: &&mut crate::resource::Resource| !r.is_empty() && r.kind() != "CustomResourceDefinition";
        for r in all.0.iter_mut().filter(changed) {
            r.object.values_mut().try_for_each(|v| changer.change_all(v))?;
        }
        for r in all.0.iter_mut().filter(changed) {
            for spec in &self.specs {
                visit(r, spec, Create::Nothing, &mut |v| changer.set(v))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_and_joins_images() {
        let image = |new_name: &str, new_tag: &str, digest: &str, tag_suffix: &str| Image {
            new_name: new_name.into(),
            new_tag: new_tag.into(),
            digest: digest.into(),
            tag_suffix: tag_suffix.into(),
            name: String::new(),
        };
        for (change, from, to) in [
            (image("", "2", "", ""), "nginx", "nginx:2"),
            (image("", "2", "", ""), "nginx:1@sha256:ab", "nginx:2"),
            (image("", "", "sha256:cd", ""), "nginx:1", "nginx@sha256:cd"),
            (image("", "2", "sha256:cd", ""), "nginx:1", "nginx:2@sha256:cd"),
            (image("r:5000/x", "", "", ""), "reg:80/nginx:1", "r:5000/x:1"),
            (image("", "", "", "-dev"), "nginx:1@sha256:ab", "nginx:1-dev"),
            (image("x", "", "", ""), "nginx:1@sha256:ab", "x:1@sha256:ab"),
        ] {
            assert_eq!(change.change(from), to, "{from}");
        }
    }
}
