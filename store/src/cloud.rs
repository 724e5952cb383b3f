//! The settings that the clients of all clouds share: TLS, time limits, and no retries by the
//! client itself.

use std::sync::Once;
use std::time::Duration;

use object_store::{ClientOptions, HeaderValue, RetryConfig};

use crate::options::Options;

/// The time after which the client closes an unused connection. Stores close unused connections
/// after about twenty seconds, and a request on a closed connection costs a retry.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// Returns the settings that switch off the retries of the client.
/// [`Attempts`](crate::retry::Attempts) makes the retries and counts them.
pub(crate) fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// Returns the HTTP options that all clients have.
pub(crate) fn client_options(options: &Options) -> ClientOptions {
    let agent = HeaderValue::from_static(concat!("zillion/", env!("CARGO_PKG_VERSION")));
    ClientOptions::new()
        .with_user_agent(agent)
        .with_timeout(options.request_time)
        .with_connect_timeout(options.connect_time)
        .with_pool_idle_timeout(POOL_IDLE_TIMEOUT)
}

/// Installs the TLS library for this process, unless the process has already installed one.
pub(crate) fn install_tls() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // An error means that the process has already installed another implementation, which can
        // be used too.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}
