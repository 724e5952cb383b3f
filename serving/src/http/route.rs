//! Which path asks for what.

use axum::http::Method;

use crate::host::Selector;

/// What a path asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Live,
    Ready,
    Metrics,
    OpenApi,
    ServerMetadata,
    /// Statistics of every model.
    AllStatistics,
    Index,
    Load {
        model: String,
    },
    Unload {
        model: String,
    },
    Model(Target, Verb),
}

/// A model, and which of its versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) model: String,
    pub(super) selector: Selector,
}

/// What is wanted of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// `GET /v2/models/{m}`.
    Metadata,
    /// `GET /v2/models/{m}/ready`.
    Ready,
    /// `GET /v2/models/{m}/config`.
    Config,
    /// `GET /v2/models/{m}/stats`.
    Statistics,
    /// `POST /v2/models/{m}/infer`.
    Infer,
    /// `GET /v1/models/{m}`.
    Status,
    /// `GET /v1/models/{m}/metadata`.
    TfMetadata,
    /// `POST /v1/models/{m}:predict`.
    Predict,
    /// `POST /v1/models/{m}:classify`.
    Classify,
    /// `POST /v1/models/{m}:regress`.
    Regress,
    /// `POST /v1/models/{m}:rank`.
    Rank,
}

impl Route {
    /// What a path asks for; `None`: there is nothing at it.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
        Some(match parts[..] {
            ["healthz"] => Self::Live,
            ["readyz"] => Self::Ready,
            ["metrics"] => Self::Metrics,
            ["openapi.json"] => Self::OpenApi,
            ["v2", ref rest @ ..] => Self::v2(rest)?,
            ["v1", "models", ref rest @ ..] => Self::v1(rest)?,
            _ => return None,
        })
    }

    fn v2(parts: &[&str]) -> Option<Self> {
        let of = |model: &str, selector, verb: &str| {
            let verb = match verb {
                "" => Verb::Metadata,
                "ready" => Verb::Ready,
                "config" => Verb::Config,
                "stats" => Verb::Statistics,
                "infer" => Verb::Infer,
                _ => return None,
            };
            Target::new(model, selector).map(|target| Self::Model(target, verb))
        };
        match *parts {
            [] | [""] => Some(Self::ServerMetadata),
            ["health", "live"] => Some(Self::Live),
            ["health", "ready"] => Some(Self::Ready),
            ["repository", "index"] => Some(Self::Index),
            ["repository", "models", model, "load"] => Some(Self::Load { model: name(model)? }),
            ["repository", "models", model, "unload"] => Some(Self::Unload { model: name(model)? }),
            // A model of this name has its metadata at its versions' paths alone, as in Triton.
            ["models", "stats"] => Some(Self::AllStatistics),
            ["models", model] => of(model, Selector::Default, ""),
            ["models", model, "versions", v] => of(model, version(v)?, ""),
            ["models", model, verb] if !verb.is_empty() => of(model, Selector::Default, verb),
            ["models", model, "versions", v, verb] if !verb.is_empty() => {
                of(model, version(v)?, verb)
            }
            _ => None,
        }
    }

    fn v1(parts: &[&str]) -> Option<Self> {
        let of = |model: &str, selector, verb: Option<&str>| {
            let verb = match verb {
                None => Verb::Status,
                Some("predict") => Verb::Predict,
                Some("classify") => Verb::Classify,
                Some("regress") => Verb::Regress,
                Some("rank") => Verb::Rank,
                Some(_) => return None,
            };
            Target::new(model, selector).map(|target| Self::Model(target, verb))
        };
        let metadata = |model: &str, selector| {
            Target::new(model, selector).map(|target| Self::Model(target, Verb::TfMetadata))
        };
        match *parts {
            [last] => {
                let (model, verb) = split_verb(last);
                of(model, Selector::Default, verb)
            }
            [model, "metadata"] => metadata(model, Selector::Default),
            [model, "versions", last] => {
                let (v, verb) = split_verb(last);
                of(model, version(v)?, verb)
            }
            [model, "labels", last] => {
                let (label, verb) = split_verb(last);
                of(model, Selector::Label(name(label)?), verb)
            }
            [model, "versions", v, "metadata"] => metadata(model, version(v)?),
            [model, "labels", label, "metadata"] => metadata(model, Selector::Label(name(label)?)),
            _ => None,
        }
    }

    /// The method that the path takes.
    pub(super) fn allowed(&self) -> Method {
        match self {
            Self::Index | Self::Load { .. } | Self::Unload { .. } => Method::POST,
            Self::Model(_, verb) if verb.is_scoring() => Method::POST,
            _ => Method::GET,
        }
    }

    /// Model and protocol, for the metrics of those that score.
    pub(super) fn labels(&self) -> Option<(&str, &'static str)> {
        let Self::Model(Target { model, .. }, verb) = self else { return None };
        let protocol = match verb {
            Verb::Infer => "v2",
            Verb::Predict | Verb::Classify | Verb::Regress => "tf",
            Verb::Rank => "rank",
            _ => return None,
        };
        Some((model, protocol))
    }
}

impl Target {
    fn new(model: &str, selector: Selector) -> Option<Self> {
        Some(Self { model: name(model)?, selector })
    }
}

impl Verb {
    /// Whether it asks for scores.
    pub(super) fn is_scoring(self) -> bool {
        matches!(self, Self::Infer | Self::Predict | Self::Classify | Self::Regress | Self::Rank)
    }
}

/// A part of a path as it was before clients escaped it; `None` of what escapes no text.
fn name(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(rest.next())?, digit(rest.next())?);
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok().filter(|name| !name.is_empty())
}

/// A version's number, in the one way that it is written.
fn version(text: &str) -> Option<Selector> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(Selector::Version(zillion_registry::VersionId(number)))
}

/// `name:verb` into both.
fn split_verb(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((name, verb)) => (name, Some(verb)),
        None => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zillion_registry::VersionId;

    use super::*;

    #[test]
    fn paths_are_those_of_the_protocols() {
        let default = || Target { model: "m".to_owned(), selector: Selector::Default };
        let three = || Target { model: "m".to_owned(), selector: Selector::Version(VersionId(3)) };
        let canary =
            || Target { model: "m".to_owned(), selector: Selector::Label("canary".to_owned()) };
        for (path, route) in [
            ("/v2", Route::ServerMetadata),
            ("/v2/", Route::ServerMetadata),
            ("/v2/health/live", Route::Live),
            ("/v2/models/stats", Route::AllStatistics),
            ("/v2/repository/index", Route::Index),
            ("/v2/repository/models/m/load", Route::Load { model: "m".to_owned() }),
            ("/v2/repository/models/m/unload", Route::Unload { model: "m".to_owned() }),
            ("/v2/models/m", Route::Model(default(), Verb::Metadata)),
            ("/v2/models/%6D", Route::Model(default(), Verb::Metadata)),
            ("/v2/models/m/ready", Route::Model(default(), Verb::Ready)),
            ("/v2/models/m/config", Route::Model(default(), Verb::Config)),
            ("/v2/models/m/stats", Route::Model(default(), Verb::Statistics)),
            ("/v2/models/m/infer", Route::Model(default(), Verb::Infer)),
            ("/v2/models/m/versions/3", Route::Model(three(), Verb::Metadata)),
            ("/v2/models/m/versions/3/ready", Route::Model(three(), Verb::Ready)),
            ("/v2/models/m/versions/3/infer", Route::Model(three(), Verb::Infer)),
            ("/v1/models/m", Route::Model(default(), Verb::Status)),
            ("/v1/models/m/versions/3", Route::Model(three(), Verb::Status)),
            ("/v1/models/m/labels/canary", Route::Model(canary(), Verb::Status)),
            ("/v1/models/m/metadata", Route::Model(default(), Verb::TfMetadata)),
            ("/v1/models/m/labels/canary/metadata", Route::Model(canary(), Verb::TfMetadata)),
            ("/v1/models/m:predict", Route::Model(default(), Verb::Predict)),
            ("/v1/models/m:classify", Route::Model(default(), Verb::Classify)),
            ("/v1/models/m:regress", Route::Model(default(), Verb::Regress)),
            ("/v1/models/m:rank", Route::Model(default(), Verb::Rank)),
            ("/v1/models/m/versions/3:predict", Route::Model(three(), Verb::Predict)),
            ("/v1/models/m/labels/canary:predict", Route::Model(canary(), Verb::Predict)),
        ] {
            assert_eq!(Route::parse(path), Some(route), "{path}");
        }
        for path in [
            "/",
            "/v3",
            "/v2/models",
            "/v2/models/",
            "/v2/models/m/",
            "/v2/models/m/x",
            "/v2/models/m/versions/x/infer",
            "/v2/models/m/versions/03",
            "/v2/models/m/versions/+3",
            "/v2/models/%ff",
            "/v2/models/%2",
            "/v1/models/m:x",
            "/v1/models/:predict",
            "//v2",
            "/v1/models",
            "/v1/models/m/labels/:predict",
            "/metrics/",
        ] {
            assert_eq!(Route::parse(path), None, "{path}");
        }
    }

    proptest! {
        #[test]
        fn no_path_is_a_panic(path in "(/(v1|v2|models|m|versions|labels|[0-9]{1,3}|%[0-9a-f]{0,2}|.{0,4}))*") {
            let _ = Route::parse(&path);
        }
    }
}
