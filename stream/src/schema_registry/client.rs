//! The client of a registry of schemas.
//!
//! The thread of the stream waits for the answers, because no message can be decoded before.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use reqwest::{Certificate, RequestBuilder, StatusCode, Url};
use zillion_device::DeviceError;

use super::answer::{ErrorAnswer, ReferenceAnswer, SchemaAnswer, UNKNOWN_SCHEMA};
use super::settings::RegistrySettings;
use super::stored::{StoredReference, StoredSchema};
use crate::error::{Error, Result};
use crate::option_value::OptionValue;

/// The largest number of bytes of an answer.
const LARGEST: usize = 4 << 20;
/// The largest number of schemas to which one schema refers.
const MOST_REFERENCES: usize = 100;
/// The first wait after a failed request. Each further wait is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// The longest wait between two requests.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// The longest wait before the caller is asked whether the run stops.
const SLICE: Duration = Duration::from_millis(50);
/// The remedy for a registry that does not answer.
const REACH: &str = "check `url`, `ca`, the network and the registry, or raise `outage_ms`; \
    nothing is lost, the run goes on when it is started again";

/// A client of a registry of schemas.
pub struct SchemaRegistry {
    settings: RegistrySettings,
    base: Url,
    client: reqwest::Client,
    runtime: tokio::runtime::Runtime,
    login: Login,
}

/// The way in which requests are authenticated.
enum Login {
    Nobody,
    User { name: String, password: String },
    Token(String),
}

/// The result of a search for a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundSchema {
    /// The schema with the id.
    Found(StoredSchema),
    /// The registry does not know the id.
    Unknown,
    /// The run stops before the registry has answered.
    Stopped,
}

/// The end of one request without a schema.
enum Failure {
    /// The request may succeed later.
    Passing(String),
    Unknown,
    Lasting(Error),
}

/// Writes the client without its secrets.
impl std::fmt::Debug for SchemaRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SchemaRegistry").field("url", &self.settings.url).finish_non_exhaustive()
    }
}

impl SchemaRegistry {
    /// Creates a client. This sends no request.
    ///
    /// # Errors
    /// Returns an error if settings contradict each other, or if a secret or a certificate cannot
    /// be read.
    pub fn open(settings: RegistrySettings) -> Result<Self> {
        settings.check()?;
        let refuse = |problem: String, remedy| settings.error(problem, remedy);
        let base = Url::parse(&format!("{}/", settings.url.trim_end_matches('/')))
            .map_err(|e| refuse(format!("`url` is no address ({e})"), "correct the address"))?;
        let read = |name: &str, value: &Option<OptionValue>| {
            value.as_ref().map(|value| value.read(name)).transpose()
        };
        let login = match (
            read("user", &settings.user)?,
            read("password", &settings.password)?,
            read("token", &settings.token)?,
        ) {
            (Some(name), Some(password), _) => Login::User { name, password },
            (_, _, Some(token)) => Login::Token(token),
            _ => Login::Nobody,
        };
        // An error means that the process has a TLS library already, which can be used too.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("zillion/", env!("CARGO_PKG_VERSION")))
            .timeout(Duration::from_millis(settings.request_ms))
            // A redirection to another host could take the secrets with it.
            .redirect(reqwest::redirect::Policy::none());
        if let Some(path) = &settings.ca {
            let pem = std::fs::read(path).map_err(|e| DeviceError::file("read", path, e))?;
            let authorities = Certificate::from_pem_bundle(&pem).unwrap_or_default();
            if authorities.is_empty() {
                let problem = format!("`{}` has no certificate", path.display());
                return Err(refuse(problem, "name a file in PEM with `ca`"));
            }
            builder = builder.tls_certs_only(authorities);
        }
        let client =
            builder.build().map_err(|e| refuse(explain(&e), "correct the certificates of `ca`"))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(2)
            .thread_name("zillion-schemas")
            .build()
            .map_err(|e| refuse(format!("no runtime starts ({e})"), "free some resources"))?;
        Ok(Self { settings, base, client, runtime, login })
    }

    /// Asks for a schema with all schemas to which it refers. Failed requests are repeated for
    /// `outage_ms`, or until `stops` returns `true`.
    ///
    /// # Errors
    /// Returns an error if the registry does not answer in this time, or refuses the request.
    pub fn find(&self, id: u32, stops: &dyn Fn() -> bool) -> Result<FoundSchema> {
        let began = Instant::now();
        let mut wait = FIRST_WAIT;
        loop {
            if stops() {
                return Ok(FoundSchema::Stopped);
            }
            let problem = match self.ask(id) {
                Ok(schema) => return Ok(FoundSchema::Found(schema)),
                Err(Failure::Unknown) => return Ok(FoundSchema::Unknown),
                Err(Failure::Lasting(error)) => return Err(error),
                Err(Failure::Passing(problem)) => problem,
            };
            let limit = Duration::from_millis(self.settings.outage_ms);
            if began.elapsed() + wait > limit {
                let problem = format!(
                    "the schema with id {id} cannot be fetched, {problem}; {} seconds of retries \
                     have failed",
                    limit.as_secs_f64()
                );
                return Err(self.settings.error(problem, REACH));
            }
            let again = Instant::now() + wait;
            while let Some(left) = again.checked_duration_since(Instant::now())
                && !stops()
            {
                std::thread::sleep(left.min(SLICE));
            }
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// Asks once for a schema and the schemas to which it refers.
    fn ask(&self, id: u32) -> std::result::Result<StoredSchema, Failure> {
        let id = id.to_string();
        let main = self.get(&["schemas", "ids", &id])?;
        let mut references: Vec<StoredReference> = Vec::new();
        let mut places: BTreeMap<String, (String, u32)> = BTreeMap::new();
        let mut open = VecDeque::from(main.references);
        while let Some(ReferenceAnswer { name, subject, version }) = open.pop_front() {
            match places.get(&name) {
                Some(known) if *known == (subject.clone(), version) => continue,
                Some(_) => {
                    let problem = format!("two references have the name `{name}`");
                    return Err(self.lasting(&id, problem, "correct the schema in the registry"));
                }
                None => {}
            }
            if references.len() == MOST_REFERENCES {
                let problem = format!("it refers to more than {MOST_REFERENCES} schemas");
                return Err(self.lasting(&id, problem, "use fewer references"));
            }
            let version_text = version.to_string();
            let answer = self.get(&["subjects", &subject, "versions", &version_text]);
            let answer = answer.map_err(|failure| match failure {
                Failure::Unknown => {
                    let problem = format!("it refers to `{subject}`, which is unknown");
                    self.lasting(&id, problem, "correct the schema in the registry")
                }
                other => other,
            })?;
            places.insert(name.clone(), (subject, version));
            references.push(StoredReference { name, text: answer.schema });
            open.extend(answer.references);
        }
        let language = main.language.unwrap_or_else(|| "AVRO".to_owned());
        Ok(StoredSchema { language, text: main.schema, references })
    }

    fn lasting(&self, id: &str, problem: String, remedy: &'static str) -> Failure {
        Failure::Lasting(self.settings.error(format!("the schema with id {id}: {problem}"), remedy))
    }

    /// Sends one request for a schema.
    fn get(&self, path: &[&str]) -> std::result::Result<SchemaAnswer, Failure> {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        let request = self.client.get(url).header("accept", "application/json");
        let (status, body) = self.runtime.block_on(self.fetch(self.login.apply(request)))?;
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|e| {
                let problem = format!("the answer is no schema ({e})");
                Failure::Lasting(self.settings.error(problem, "correct `url`"))
            });
        }
        let answer: Option<ErrorAnswer> = serde_json::from_slice(&body).ok();
        let message = answer.as_ref().map_or("", |answer| answer.message.as_str());
        let message: String = message.chars().take(200).collect();
        let problem = format!("it answers {status} {message}").trim_end().to_owned();
        let is_unknown = answer.is_some_and(|answer| answer.error_code == UNKNOWN_SCHEMA)
            || path[0] == "subjects";
        Err(match status {
            StatusCode::NOT_FOUND if is_unknown => Failure::Unknown,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Failure::Lasting(
                self.settings.error(problem, "correct `user` and `password`, or `token`"),
            ),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
                Failure::Passing(problem)
            }
            _ if status.is_server_error() => Failure::Passing(problem),
            _ => Failure::Lasting(self.settings.error(problem, "correct `url`")),
        })
    }

    /// Sends a request, and reads its answer up to the largest size.
    async fn fetch(
        &self,
        request: RequestBuilder,
    ) -> std::result::Result<(StatusCode, Vec<u8>), Failure> {
        let failed = |error: reqwest::Error| Failure::Passing(explain(&error));
        let mut answer = request.send().await.map_err(failed)?;
        let (status, mut body) = (answer.status(), Vec::new());
        while let Some(piece) = answer.chunk().await.map_err(failed)? {
            if body.len() + piece.len() > LARGEST {
                let problem = format!("an answer has more than {LARGEST} bytes");
                let error = self.settings.error(problem, "register smaller schemas");
                return Err(Failure::Lasting(error));
            }
            body.extend_from_slice(&piece);
        }
        Ok((status, body))
    }
}

impl Login {
    fn apply(&self, request: RequestBuilder) -> RequestBuilder {
        match self {
            Self::Nobody => request,
            Self::User { name, password } => request.basic_auth(name, Some(password)),
            Self::Token(token) => request.bearer_auth(token),
        }
    }
}

/// Returns an error with its causes, which say more than the error itself.
fn explain(error: &reqwest::Error) -> String {
    let (mut text, mut cause) = (String::new(), std::error::Error::source(error));
    while let Some(inner) = cause {
        text = inner.to_string();
        cause = inner.source();
    }
    let what = match error {
        e if e.is_timeout() => "the request takes too long",
        e if e.is_connect() => "no connection can be made",
        _ => "the request fails",
    };
    if text.is_empty() { what.to_owned() } else { format!("{what} ({text})") }
}
