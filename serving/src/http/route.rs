//! The model and the version that a path names, and the verb behind the colon of TF-Serving's
//! paths.
//!
//! A version number has one written form (`3`, not `03`), so that each version has one path. A path
//! with another form of a number, or without a model, is an unknown path.

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use zillion_registry::VersionId;

use crate::error::{Result, ServeError};
use crate::host::Selector;

/// A model, and the version of it that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) model: String,
    pub(super) selector: Selector,
}

/// The target of a TF-Serving path, and the verb behind its colon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TfTarget {
    pub(super) target: Target,
    /// The verb of a path that asks for scores. A path without a verb asks for the status.
    pub(super) verb: Option<Verb>,
}

/// The kind of a request that asks for scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// The path `POST /v2/models/{m}/infer`.
    Infer,
    /// The path `POST /v1/models/{m}:predict`.
    Predict,
    /// The path `POST /v1/models/{m}:classify`.
    Classify,
    /// The path `POST /v1/models/{m}:regress`.
    Regress,
    /// The path `POST /v1/models/{m}:rank`.
    Rank,
    /// The path `POST /v1/models/{m}:retrieve`.
    Retrieve,
}

impl Verb {
    /// Reads the verb of a TF-Serving path.
    fn parse(text: &str) -> Option<Self> {
        match text {
            "predict" => Some(Self::Predict),
            "classify" => Some(Self::Classify),
            "regress" => Some(Self::Regress),
            "rank" => Some(Self::Rank),
            "retrieve" => Some(Self::Retrieve),
            _ => None,
        }
    }

    /// Returns the name of the protocol in metrics and traces.
    pub(super) fn protocol(self) -> &'static str {
        match self {
            Self::Infer => "v2",
            Self::Predict | Self::Classify | Self::Regress => "tf",
            Self::Rank => "rank",
            Self::Retrieve => "retrieve",
        }
    }
}

impl Target {
    /// Reads the parameters of a path: `model`, and at most one of `version` and `label`.
    fn read(parameters: &[(&str, &str)]) -> Option<Self> {
        let mut target = Self { model: String::new(), selector: Selector::Default };
        for &(name, value) in parameters {
            match name {
                "model" => value.clone_into(&mut target.model),
                "version" => target.selector = Selector::Version(parse_version(value)?),
                _ if value.is_empty() => return None,
                // The name of a pointer is shorter, so that a label that was cut names none.
                _ => target.selector = Selector::Label(value.chars().take(101).collect()),
            }
        }
        (!target.model.is_empty()).then_some(target)
    }
}

impl TfTarget {
    /// Reads the parameters of a path, the last of which may end with a colon and a verb.
    fn read(mut parameters: Vec<(&str, &str)>) -> Option<Self> {
        let mut verb = None;
        if let Some((_, last)) = parameters.last_mut()
            && let Some((name, text)) = last.rsplit_once(':')
        {
            verb = Some(Verb::parse(text)?);
            *last = name;
        }
        Some(Self { target: Target::read(&parameters)?, verb })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Target {
    type Rejection = ServeError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let parameters = RawPathParams::from_request_parts(parts, state).await.ok();
        let target = parameters.and_then(|all| Self::read(&all.iter().collect::<Vec<_>>()));
        target.ok_or_else(|| ServeError::unknown_path(parts.uri.path()))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for TfTarget {
    type Rejection = ServeError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let parameters = RawPathParams::from_request_parts(parts, state).await.ok();
        let target = parameters.and_then(|all| Self::read(all.iter().collect()));
        target.ok_or_else(|| ServeError::unknown_path(parts.uri.path()))
    }
}

/// Reads a version number that has neither leading zeros nor a sign.
fn parse_version(text: &str) -> Option<VersionId> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(VersionId(number))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn target(selector: Selector) -> Target {
        Target { model: "m".to_owned(), selector }
    }

    #[test]
    fn parameters_name_the_model_and_its_version() {
        let label = || Selector::Label("canary".to_owned());
        for (parameters, selector) in [
            (&[("model", "m")][..], Selector::Default),
            (&[("model", "m"), ("version", "3")], Selector::Version(VersionId(3))),
            (&[("model", "m"), ("label", "canary")], label()),
        ] {
            assert_eq!(Target::read(parameters), Some(target(selector)), "{parameters:?}");
        }
        for bad in ["x", "03", "+3", "", "-1", "18446744073709551616"] {
            assert_eq!(Target::read(&[("model", "m"), ("version", bad)]), None, "{bad}");
        }
        assert_eq!(Target::read(&[("model", "")]), None);
        assert_eq!(Target::read(&[("model", "m"), ("label", "")]), None);
    }

    #[test]
    fn the_last_segment_may_end_with_a_verb() {
        let read = |parameters: &[(&'static str, &'static str)]| {
            TfTarget::read(parameters.to_vec()).map(|found| (found.target, found.verb))
        };
        assert_eq!(read(&[("model", "m")]), Some((target(Selector::Default), None)));
        for (text, verb) in [
            ("m:predict", Verb::Predict),
            ("m:classify", Verb::Classify),
            ("m:regress", Verb::Regress),
            ("m:rank", Verb::Rank),
            ("m:retrieve", Verb::Retrieve),
        ] {
            assert_eq!(read(&[("model", text)]), Some((target(Selector::Default), Some(verb))));
        }
        let three = target(Selector::Version(VersionId(3)));
        let version = [("model", "m"), ("version", "3:predict")];
        assert_eq!(read(&version), Some((three, Some(Verb::Predict))));
        let canary = target(Selector::Label("canary".to_owned()));
        let label = [("model", "m"), ("label", "canary:rank")];
        assert_eq!(read(&label), Some((canary, Some(Verb::Rank))));
        for bad in ["m:x", "m:infer", ":predict", "m:"] {
            assert_eq!(read(&[("model", bad)]), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_parameter_is_a_panic(model in ".{0,8}", version in "[0-9:a-z+-]{0,8}") {
            let _ = TfTarget::read(vec![("model", &model), ("version", &version)]);
            let _ = TfTarget::read(vec![("model", &model), ("label", &version)]);
        }
    }
}
