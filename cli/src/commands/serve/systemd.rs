//! Notices to systemd, and the sockets that systemd hands over. Under any other parent process, all
//! of these functions do nothing.

use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use listenfd::ListenFd;
use sd_notify::NotifyState;

/// The sockets that systemd opened for this process, by protocol.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    listeners: HashMap<String, TcpListener>,
}

impl Sockets {
    /// Takes the sockets that the environment names: `LISTEN_FDS`, and `LISTEN_FDNAMES` from
    /// `FileDescriptorName=http` and `=grpc`. A socket without one of these names is used for HTTP.
    pub(super) fn take() -> Result<Self> {
        // The names are read before the sockets are taken, because taking them removes these
        // variables.
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut handed = ListenFd::from_env();
        let names: Vec<&str> = names.split(':').filter(|name| !name.is_empty()).collect();
        let mut listeners = HashMap::new();
        for number in 0..handed.len() {
            let given = names.get(number).copied();
            let name = match given {
                Some(name @ ("http" | "grpc")) => name,
                // Without `FileDescriptorName`, systemd passes the name of the unit or `unknown`.
                None | Some("unknown") => "http",
                Some(name) if name.ends_with(".socket") => "http",
                Some(name) => bail!(
                    "systemd handed over a socket called `{name}`: FileDescriptorName= must be `http` or `grpc`"
                ),
            };
            let listener = handed.take_tcp_listener(number).with_context(|| {
                format!("cannot use the socket for {name} that systemd handed over")
            })?;
            let Some(listener) = listener else { continue };
            listener.set_nonblocking(true)?;
            if listeners.insert(name.to_owned(), listener).is_some() {
                bail!("systemd handed over two sockets for {name}: only one can be served");
            }
        }
        Ok(Self { listeners })
    }

    /// Returns the socket of this name, if it was handed over.
    pub(super) fn named(&mut self, name: &str) -> Option<TcpListener> {
        self.listeners.remove(name)
    }
}

/// Tells systemd that the server answers.
pub(super) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Tells systemd what the server is doing.
pub(super) fn status(status: &str) {
    tell(&[NotifyState::Status(status)]);
}

/// Tells systemd that the settings are being read again; a call of [`ready`] ends this state.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("the clock does not tell when the reload began: {error}"),
    }
}

/// Tells systemd that the server is stopping.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("finishing open requests")]);
}

/// Tells systemd's watchdog that the server is alive.
pub(super) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// Returns the longest interval between two signs of life, or `None` if no watchdog is set.
pub(super) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

fn tell(state: &[NotifyState<'_>]) {
    let told: io::Result<()> = sd_notify::notify(state);
    if let Err(error) = told {
        tracing::warn!("the service manager cannot be told: {error}");
    }
}
