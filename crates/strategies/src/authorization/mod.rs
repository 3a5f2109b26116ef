//! `authorization.k8s.io`: access reviews.

mod access_review;
mod local_subject_access_review;
mod selectors;
mod self_subject_access_review;
mod self_subject_rules_review;
mod subject_access_review;

kinds! {
    local_subject_access_review,
    self_subject_access_review,
    self_subject_rules_review,
    subject_access_review,
}
