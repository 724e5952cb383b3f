//! Notices to systemd, and the sockets that systemd hands over. Under any other parent, all of this
//! does nothing.

use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use listenfd::ListenFd;
use sd_notify::NotifyState;

/// Sockets that were opened for us, by what they are for.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    listeners: HashMap<String, TcpListener>,
}

impl Sockets {
    /// Takes the sockets that the environment names: `LISTEN_FDS`, and `LISTEN_FDNAMES` from
    /// `FileDescriptorName=http` and `=grpc`. One without such a name is for HTTP.
    pub(super) fn take() -> Result<Self> {
        // Before the sockets: taking them clears the environment's word for them.
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut handed = ListenFd::from_env();
        let names: Vec<&str> = names.split(':').filter(|name| !name.is_empty()).collect();
        let mut listeners = HashMap::new();
        for number in 0..handed.len() {
            let given = names.get(number).copied();
            let name = match given {
                Some(name @ ("http" | "grpc")) => name,
                // A unit's own name is what systemd gives where nothing was said.
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

/// Says that the server answers.
pub(super) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Says what it is doing.
pub(super) fn status(status: &str) {
    tell(&[NotifyState::Status(status)]);
}

/// Tells systemd that settings are read again; [`ready`] ends it.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("the clock does not tell when the reload began: {error}"),
    }
}

/// Says that the server ends.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("finishing open requests")]);
}

/// Says that the server lives.
pub(super) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// Returns the longest interval between two signs of life; `None` where no watchdog is set.
pub(super) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

fn tell(state: &[NotifyState<'_>]) {
    let told: io::Result<()> = sd_notify::notify(state);
    if let Err(error) = told {
        tracing::warn!("the service manager cannot be told: {error}");
    }
}
