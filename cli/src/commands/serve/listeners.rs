//! The listeners of a server. Each listener has an address, the groups of calls that it answers,
//! TLS settings, and the kinds of proof of identity that it accepts.
//!
//! Each of the options `--http`, `--grpc` and `--admin` is a short form of a listener. A settings
//! file can list the listeners instead, each with its own settings:
//!
//! ```toml
//! [serve]
//! access = "access.toml"
//!
//! [[serve.listener]]
//! address = "0.0.0.0:8443"
//! apis = ["infer", "meta", "health"]
//! auth = ["token", "jwt", "mtls"]
//! tls = { certificate = "server.pem", key = "server.key", client_authority = "clients.pem" }
//! ```

use std::collections::{BTreeSet, HashMap};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use socket2::{Domain as Family, Protocol, Socket, Type};
use zillion_access::{Identities, Reloading, TlsFiles};
use zillion_console::exit::usage_error;
use zillion_device::machine;
use zillion_serving::{Api, Listener, Proof};

use super::settings::Settings;

/// The number of connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// The largest number of network threads of a listener that the settings do not name. More of them
/// would compete with the threads that score large requests.
const MOST_USUAL_THREADS: NonZeroUsize = NonZeroUsize::new(16).expect("it is above 0");

/// The settings of one listener.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListenerSettings {
    /// The address of the listener, in the form HOST:PORT.
    pub(crate) address: String,
    /// The groups of calls that the listener answers. If absent, it answers all groups except
    /// control.
    pub(crate) apis: Option<BTreeSet<Api>>,
    /// The kinds of proof of identity that the listener accepts. If absent, `serve.auth` names
    /// them.
    pub(crate) auth: Option<BTreeSet<Proof>>,
    /// The TLS settings of the listener. If absent, the TLS settings of the server apply.
    pub(crate) tls: Option<TlsSettings>,
    /// The number of network threads, or `None` for the number in the settings of the server.
    pub(crate) threads: Option<NonZeroUsize>,
}

/// The TLS settings of a listener. The files are PEM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TlsSettings {
    /// The file with the certificate of the server, followed by the certificates between it and the
    /// root.
    pub(crate) certificate: PathBuf,
    /// The file with the private key of the certificate.
    pub(crate) key: PathBuf,
    /// The file with the certificates of the authorities that sign the certificates of clients.
    /// `None` if clients have no certificates.
    pub(crate) client_authority: Option<PathBuf>,
    /// Whether the handshake refuses a client without a certificate.
    #[serde(default)]
    pub(crate) require_client: bool,
}

/// A value that is read again when its files change.
type FromFiles<T> = Arc<Reloading<T, zillion_access::Error>>;

/// The listeners of a server, and the values that are read again when their files change.
pub(super) struct Listeners {
    /// The listeners. The text of each listener stands before its address in the announcement.
    pub(super) all: Vec<(&'static str, Listener)>,
    pub(super) identities: Option<FromFiles<Identities>>,
    pub(super) tls: Vec<FromFiles<Arc<rustls::ServerConfig>>>,
}

/// A listener with all its settings after the defaults were applied.
struct Resolved {
    announcement: &'static str,
    socket: Option<TcpListener>,
    address: String,
    apis: BTreeSet<Api>,
    auth: BTreeSet<Proof>,
    tls: Option<TlsSettings>,
    threads: NonZeroUsize,
}

/// Opens the listeners of the settings. Sockets that systemd opened are used for `http` and `grpc`.
///
/// # Errors
/// Returns an error if the server cannot listen on an address, if a file is not valid, or if
/// callers on another machine could reach the server without a proof of identity.
pub(super) fn open(
    settings: &Settings,
    mut handed: HashMap<&'static str, TcpListener>,
) -> Result<Listeners> {
    let identities = match &settings.access {
        None => None,
        Some(path) => {
            let path = path.clone();
            let load = move || Ok((Identities::load(&path)?, Identities::files(&path)));
            Some(Arc::new(Reloading::new(load).context("serve.access")?))
        }
    };
    let mut listeners = Listeners { all: Vec::new(), identities, tls: Vec::new() };
    let resolved = resolve(settings, &mut handed)?;
    check_effect(settings, &resolved)?;
    for listener in resolved {
        listeners.add(settings, listener)?;
    }
    Ok(listeners)
}

/// Returns the listeners of the settings. Defaults replace the settings that are absent.
fn resolve(
    settings: &Settings,
    handed: &mut HashMap<&'static str, TcpListener>,
) -> Result<Vec<Resolved>> {
    let auth: BTreeSet<Proof> = settings.auth.iter().copied().collect();
    let tls = settings.tls()?;
    let threads = settings.network_threads.unwrap_or_else(usual_threads);
    if !settings.listener.is_empty() {
        if settings.http.is_some() || settings.grpc.is_some() || settings.admin.is_some() {
            return usage_error(
                "`serve.listener` lists the listeners of the server already; remove --http, \
                 --grpc and --admin",
            );
        }
        if let Some(name) = handed.keys().next() {
            return usage_error(format!(
                "systemd handed over a socket for {name}, and `serve.listener` opens the sockets \
                 of the server; leave the socket unit or `serve.listener` out"
            ));
        }
        let usual: BTreeSet<Api> =
            Api::ALL.into_iter().filter(|api| *api != Api::Control).collect();
        let resolved = settings.listener.iter().map(|listener| Resolved {
            announcement: "listening on http://",
            socket: None,
            address: listener.address.clone(),
            apis: listener.apis.clone().unwrap_or_else(|| usual.clone()),
            auth: listener.auth.clone().unwrap_or_else(|| auth.clone()),
            tls: listener.tls.clone().or_else(|| tls.clone()),
            threads: listener.threads.unwrap_or(threads),
        });
        return Ok(resolved.collect());
    }
    // If there is an address for administration, the other listeners answer neither metrics nor
    // control.
    let administration = [Api::Metrics, Api::Control];
    let public: BTreeSet<Api> = Api::ALL
        .into_iter()
        .filter(|api| settings.admin.is_none() || !administration.contains(api))
        .collect();
    let admin = [Api::Health, Api::Meta, Api::Metrics, Api::Control].into();
    let mut resolved = Vec::new();
    for (announcement, name, address, apis) in [
        ("listening on http://", "http", Some(settings.http()), &public),
        ("grpc on ", "grpc", settings.grpc.as_deref(), &public),
        ("administration on http://", "admin", settings.admin.as_deref(), &admin),
    ] {
        let socket = handed.remove(name);
        let Some(address) = address.or(socket.as_ref().map(|_| name)) else { continue };
        resolved.push(Resolved {
            announcement,
            socket,
            address: address.to_owned(),
            apis: apis.clone(),
            auth: auth.clone(),
            tls: tls.clone(),
            threads: if name == "admin" { NonZeroUsize::MIN } else { threads },
        });
    }
    Ok(resolved)
}

/// Refuses settings of security that no listener uses, because a reader of the settings would
/// believe that they protect the server.
fn check_effect(settings: &Settings, resolved: &[Resolved]) -> Result<()> {
    if settings.access.is_some() && resolved.iter().all(|listener| listener.auth.is_empty()) {
        return usage_error(
            "`serve.access` names identities, and no listener asks for a proof of identity: every \
             caller may make every call; set `serve.auth`, or leave `serve.access` out",
        );
    }
    for Resolved { address, tls, .. } in resolved {
        if tls.as_ref().is_some_and(|tls| tls.require_client && tls.client_authority.is_none()) {
            return usage_error(format!(
                "the listener on {address} has `require_client`, and no authority says which \
                 certificates of clients are valid; set `client_authority` of its TLS settings"
            ));
        }
    }
    Ok(())
}

impl Listeners {
    fn add(&mut self, settings: &Settings, listener: Resolved) -> Result<()> {
        let Resolved { announcement, socket, address, apis, auth, tls, threads } = listener;
        let socket = match socket {
            Some(socket) => socket,
            None => bind(&address).with_context(|| {
                format!("cannot listen on {address}; name a free address as HOST:PORT")
            })?,
        };
        if !settings.insecure {
            check_exposure(socket.local_addr()?, &apis, &auth, tls.is_some())?;
        }
        if !auth.is_empty() && self.identities.is_none() {
            return usage_error(format!(
                "the listener on {address} asks for a proof of identity, but no identities are \
                 known; name the access file with --access"
            ));
        }
        if auth.contains(&Proof::Mtls)
            && tls.as_ref().is_none_or(|tls| tls.client_authority.is_none())
        {
            return usage_error(format!(
                "the listener on {address} takes client certificates, but no authority for them \
                 is named; set `client_authority` of its TLS settings, or --tls-client-ca"
            ));
        }
        let tls = tls.map(read_again).transpose()?;
        self.tls.extend(tls.clone());
        let identities = self.identities.clone().filter(|_| !auth.is_empty());
        let listener = Listener { socket, threads, apis, tls, proofs: auth, identities };
        self.all.push((announcement, listener));
        Ok(())
    }
}

/// Refuses a listener that other machines can reach without a proof of identity.
fn check_exposure(
    bound: SocketAddr,
    apis: &BTreeSet<Api>,
    auth: &BTreeSet<Proof>,
    has_tls: bool,
) -> Result<()> {
    // Health needs no proof on any listener.
    if bound.ip().is_loopback() || apis.iter().all(|api| *api == Api::Health) {
        return Ok(());
    }
    if auth.is_empty() {
        return usage_error(format!(
            "{bound} can be reached from other machines, and every caller can make every call \
             there; ask for a proof of identity with --auth, listen on a loopback address, or set \
             --insecure if another program protects the server"
        ));
    }
    if apis.contains(&Api::Control) && !has_tls {
        return usage_error(format!(
            "{bound} can be reached from other machines, and lets callers load and unload models \
             without TLS; set --tls-certificate and --tls-key, answer these calls on a loopback \
             address with --admin, or set --insecure if another program protects the server"
        ));
    }
    Ok(())
}

/// Reads the files of TLS settings. The returned value reads them again when they change.
fn read_again(tls: TlsSettings) -> Result<FromFiles<Arc<rustls::ServerConfig>>> {
    let TlsSettings { certificate, key, client_authority, require_client } = tls;
    let files = TlsFiles { certificate, key, client_authority, require_client };
    let load = move || Ok((files.load()?, files.paths()));
    Ok(Arc::new(Reloading::new(load)?))
}

/// Returns the number of network threads without a setting: one for each processor, up to
/// [`MOST_USUAL_THREADS`].
fn usual_threads() -> NonZeroUsize {
    machine::cpus().min(MOST_USUAL_THREADS)
}

/// Opens a socket on an address.
fn bind(address: &str) -> Result<TcpListener> {
    let address = address
        .to_socket_addrs()?
        .next()
        .context("the name of the host has no address; correct it")?;
    let socket = Socket::new(Family::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(TcpListener::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(address: &str, apis: &[Api], auth: &[Proof], has_tls: bool) -> bool {
        let apis = apis.iter().copied().collect();
        let auth = auth.iter().copied().collect();
        check_exposure(address.parse().expect("an address"), &apis, &auth, has_tls).is_ok()
    }

    #[test]
    fn other_machines_must_prove_their_identity() {
        let (all, token) = (&Api::ALL[..], &[Proof::Token][..]);
        assert!(check("127.0.0.1:1", all, &[], false));
        assert!(check("[::1]:1", all, &[], false));
        assert!(!check("0.0.0.0:1", all, &[], false));
        assert!(!check("0.0.0.0:1", all, &[], true));
        assert!(!check("10.0.0.1:1", &[Api::Infer], &[], false));
        assert!(check("10.0.0.1:1", &[Api::Infer], token, false));
        assert!(check("0.0.0.0:1", &[Api::Health], &[], false));
        assert!(!check("0.0.0.0:1", all, token, false));
        assert!(check("0.0.0.0:1", all, token, true));
        assert!(!check("[::]:1", all, &[], true));
    }

    fn settings(text: &str) -> Settings {
        toml::from_str(text).expect("settings")
    }

    fn refusal(text: &str, handed: &[&'static str]) -> String {
        let socket = || TcpListener::bind("127.0.0.1:0").expect("a socket");
        let handed = handed.iter().map(|name| (*name, socket())).collect();
        match open(&settings(text), handed) {
            Ok(_) => String::new(),
            Err(error) => format!("{error:#}"),
        }
    }

    #[test]
    fn settings_of_security_that_do_nothing_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("access.toml");
        std::fs::write(&path, "").expect("a file");
        let access = format!("access = '{}'\nhttp = '127.0.0.1:0'\n", path.display());
        assert!(refusal(&access, &[]).contains("`serve.access`"));
        assert_eq!(refusal(&format!("{access}auth = ['token']\n"), &[]), "");

        let plain = "http = '127.0.0.1:0'\ntls_client_ca = 'clients.pem'\n";
        assert!(refusal(plain, &[]).contains("`serve.tls_client_ca`"));

        let listener = "[[listener]]\naddress = '127.0.0.1:0'\n";
        assert_eq!(refusal(listener, &[]), "");
        assert!(refusal(listener, &["http"]).contains("systemd"));
        let tls = "tls = { certificate = 'a', key = 'b', require_client = true }\n";
        assert!(refusal(&format!("{listener}{tls}"), &[]).contains("`client_authority`"));
    }

    #[test]
    fn threads_are_one_for_each_processor_and_one_for_admin() {
        let threads = |text: &str| -> Vec<usize> {
            let resolved = resolve(&settings(text), &mut HashMap::new()).expect("listeners");
            resolved.iter().map(|listener| listener.threads.get()).collect()
        };
        let usual = usual_threads().get();
        assert!((1..=16).contains(&usual));
        assert_eq!(threads("http = '127.0.0.1:0'\nadmin = '127.0.0.1:0'"), [usual, 1]);
        let own = "network_threads = 3\n[[listener]]\naddress = '127.0.0.1:0'\n";
        assert_eq!(threads(own), [3]);
        assert_eq!(threads(&format!("{own}threads = 5\n")), [5]);
    }
}
