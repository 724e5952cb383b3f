//! The settings that the clients of all clouds share: TLS, time limits, no retries of their own.

use std::sync::Once;
use std::time::Duration;

use object_store::{ClientOptions, HeaderValue, RetryConfig};

use crate::options::Options;

/// The time after which an unused connection is closed. Stores close theirs after some twenty
/// seconds, and a request on a connection that the store has closed costs a retry.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// Switches off the client's own retries: [`Attempts`](crate::retry::Attempts) makes them and
/// counts them.
pub(crate) fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// Returns the HTTP options of every client.
pub(crate) fn client_options(options: &Options) -> ClientOptions {
    let agent = HeaderValue::from_static(concat!("zillion/", env!("CARGO_PKG_VERSION")));
    ClientOptions::new()
        .with_user_agent(agent)
        .with_timeout(options.request_time)
        .with_connect_timeout(options.connect_time)
        .with_pool_idle_timeout(POOL_IDLE_TIMEOUT)
}

/// Installs the TLS implementation once for the process, unless the process has one already.
pub(crate) fn install_tls() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // An error means that another implementation is installed, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}
