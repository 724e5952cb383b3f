//! The notifications to systemd, and the sockets that systemd passes to this process. If systemd
//! did not start the process, these functions do nothing.

use std::collections::HashMap;
use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use listenfd::ListenFd;
use sd_notify::NotifyState;

/// Returns the sockets that systemd opened for this process, by protocol. `LISTEN_FDS` has their
/// number. `LISTEN_FDNAMES` has their names, from `FileDescriptorName=http` and `=grpc`. A socket
/// with another name is used for HTTP.
pub(super) fn take_sockets() -> Result<HashMap<&'static str, TcpListener>> {
    // The names are read before the sockets are taken, because taking them removes these
    // variables.
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut handed = ListenFd::from_env();
    let names: Vec<&str> = names.split(':').filter(|name| !name.is_empty()).collect();
    let mut listeners = HashMap::new();
    for number in 0..handed.len() {
        let given = names.get(number).copied();
        let name = match given {
            Some("grpc") => "grpc",
            // Without `FileDescriptorName`, systemd passes the name of the unit or `unknown`.
            None | Some("http" | "unknown") => "http",
            Some(name) if name.ends_with(".socket") => "http",
            Some(name) => bail!(
                "systemd handed over a socket with the unknown name `{name}`; set \
                 FileDescriptorName= to `http` or `grpc`"
            ),
        };
        let listener = handed.take_tcp_listener(number).with_context(|| {
            format!("cannot use the socket for {name} from systemd; correct its unit file")
        })?;
        let Some(listener) = listener else { continue };
        listener.set_nonblocking(true)?;
        if listeners.insert(name, listener).is_some() {
            bail!(
                "systemd handed over two sockets for {name}, but only one can be served; remove \
                 one of them"
            );
        }
    }
    Ok(listeners)
}

/// Notifies systemd that the server answers requests.
pub(super) fn notify_ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Sends a line of text about the state of the server to systemd.
pub(super) fn notify_status(status: &str) {
    notify(&[NotifyState::Status(status)]);
}

/// Notifies systemd that the server is reading its settings again. A call of [`notify_ready`] ends
/// this state.
pub(super) fn notify_reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => {
            tracing::warn!("cannot read the clock to notify systemd of the reload: {error}");
        }
    }
}

/// Notifies systemd that the server is stopping.
pub(super) fn notify_stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("finishing open requests")]);
}

/// Notifies the watchdog of systemd that the server is alive.
pub(super) fn notify_alive() {
    notify(&[NotifyState::Watchdog]);
}

/// Returns the maximum time between two calls of [`notify_alive`], or `None` if systemd has no
/// watchdog for this process.
pub(super) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}
