//! An operator with kube-rs, resident and at zero.

pub mod banner;
pub mod serverless;
