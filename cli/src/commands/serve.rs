//! `zillion serve`: serves published versions over HTTP and gRPC.

pub(crate) mod listeners;
mod reload;
mod settings;
mod systemd;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::signal::unix::{SignalKind, signal};
use zillion_access::{Identities, Reloading};
use zillion_console::durable_files;
use zillion_device::SystemClock;
use zillion_device::machine::{limit_kept_memory, raise_file_limit, return_free_memory};
use zillion_device::mmap::survive_faults;
use zillion_registry::Registry;
use zillion_serving::{Beats, Domain, Listener, serve};
use zillion_store::Location;

use self::reload::Reloader;
use self::settings::Settings;

use crate::args::ServeArgs;
use crate::operator;

/// The interval at which the server checks whether every model answers. It reports changes to the
/// service manager.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// The number of refresh intervals between a burst of large requests and the return of its memory.
const RETURN_AFTER: u32 = 12;

/// The maximum time that work on the registry gets to finish when the server exits.
const EXIT_TIME: Duration = Duration::from_millis(500);

/// The interval at which changes of the access file and of certificates are noticed.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// The largest number of bytes that the allocator keeps in each of its arenas after a burst.
const KEPT_BYTES: usize = 2 << 20;

pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    let settings = Settings::read(args)?;
    limit_kept_memory(KEPT_BYTES);
    if let Err(error) = survive_faults() {
        tracing::warn!(
            "a cached file that is truncated by another program will end this process, because the \
             system refuses a handler for such faults: {error}"
        );
    }
    settings.set_log_filter()?;
    // Each connection is an open file, and the usual limit is lower than that of connections.
    if raise_file_limit().is_none() {
        tracing::warn!("cannot raise the limit of open files; see `LimitNOFILE` of the service");
    }
    let sockets = systemd::take_sockets()?;
    let url = settings.registry();
    let config = settings.config(matches!(Location::parse(url)?, Location::Bucket { .. }))?;
    let models = config.models.iter().map(|(model, _)| model.as_str());
    // While the registry does not answer, a server can start with the versions in its cache.
    let clock = Arc::new(SystemClock::new());
    let registry = Registry::open_for_server(url, durable_files()?, clock, &config.cache, models)?;
    let registry = operator::trust(registry, settings.trust.as_deref())?;
    let metrics = crate::metrics::registry("server")?;
    let domain = Arc::new(Domain::start(&config, &registry, &durable_files()?, &metrics)?);
    // The network has threads of its own; this one waits for signals.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = runtime.block_on(async {
        let listeners = listeners::open(&settings, sockets)?;
        announce(&listeners.all)?;
        let lame_duck = Duration::from_millis(settings.lame_duck_ms.unwrap_or(0));
        let beats = Arc::new(Beats::default());
        let reporter = tokio::spawn(report_state(domain.clone(), beats.clone()));
        let reloader = Reloader::new(args.clone(), settings, domain.clone(), &metrics)?;
        tokio::spawn(reloader.follow_hangups()?);
        let stopped = follow_stop_signals(domain.clone(), lame_duck)?;
        let refresher =
            tokio::spawn(refresh_files(domain.clone(), listeners.identities, listeners.tls));
        let listeners = listeners.all.into_iter().map(|(_, listener)| listener).collect();
        let cut = serve(domain.clone(), listeners, &beats, stopped).await?;
        refresher.abort();
        reporter.abort();
        if cut > 0 {
            tracing::warn!("{cut} connections were cut off at the end of the drain time");
        }
        if !domain.end_request_log() {
            tracing::warn!(
                "the request log was not written in time; the next server of this name completes \
                 its open file"
            );
        }
        drop(domain);
        Ok(())
    });
    // Work on the registry that has not finished by then is abandoned.
    runtime.shutdown_timeout(EXIT_TIME);
    served
}

/// Reports to the service manager the state of the server, the moment when every model answers,
/// and that all network threads move.
async fn report_state(domain: Arc<Domain>, beats: Arc<Beats>) {
    let limit = systemd::watchdog();
    let mut watchdog = limit.map(|limit| tokio::time::interval(limit / 3));
    let longest = limit.unwrap_or(Duration::MAX) / 2;
    let (mut reported, mut was_ready) = (None, false);
    let mut interval = tokio::time::interval(REPORT_INTERVAL);
    loop {
        let is_due = async {
            match &mut watchdog {
                Some(watchdog) => drop(watchdog.tick().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // A thread that is stuck silences the messages, so that the server is started anew.
            () = is_due => if beats.oldest() <= longest { systemd::notify_alive() },
            _ = interval.tick() => {
                let now = (domain.is_ready(), format_status(&domain));
                if reported.as_ref() != Some(&now) {
                    let (is_ready, text) = &now;
                    // After the first one, a ready message says that a reload is complete.
                    if *is_ready && !was_ready {
                        systemd::notify_ready(text);
                        was_ready = true;
                    } else {
                        systemd::notify_status(text);
                    }
                    reported = Some(now);
                }
            }
        }
    }
}

/// Describes the state of all models in one line.
fn format_status(domain: &Domain) -> String {
    let of = |host: &Arc<zillion_serving::Host>| {
        let open = host.open();
        match (open.current, &open.problem) {
            (Some(version), None) => format!("{} version {version}", host.name()),
            (Some(version), Some(problem)) => {
                format!("{} version {version} ({problem})", host.name())
            }
            (None, Some(problem)) => format!("{} has no version: {problem}", host.name()),
            (None, None) => format!("{} is loading", host.name()),
        }
    };
    let models: Vec<String> = domain.hosts().iter().map(of).collect();
    models.join(", ")
}

/// Prints the addresses of the server, first for HTTP and then for gRPC. A program that starts the
/// server with port 0 reads these addresses.
#[expect(clippy::print_stdout, reason = "the result of a command")]
fn announce(listeners: &[(&str, Listener)]) -> Result<()> {
    for (text, listener) in listeners {
        let text = if listener.tls.is_some() {
            text.replace("http:", "https:")
        } else {
            (*text).to_owned()
        };
        println!("{text}{}", listener.socket.local_addr()?);
    }
    Ok(())
}

/// Reads the access file, certificates and keys again when they change. Also returns memory to the
/// system after a burst of large requests.
async fn refresh_files(
    domain: Arc<Domain>,
    identities: Option<Arc<Reloading<Identities, zillion_access::Error>>>,
    tls: Vec<Arc<Reloading<Arc<rustls::ServerConfig>, zillion_access::Error>>>,
) {
    let mut interval = tokio::time::interval(REFRESH_INTERVAL);
    // Buffers are dropped some seconds after a burst, and their memory is returned later.
    let mut return_in = None;
    loop {
        interval.tick().await;
        if domain.has_burst_ended() {
            return_in.get_or_insert(RETURN_AFTER);
        }
        return_in = match return_in {
            Some(0) => {
                return_free_memory();
                None
            }
            left => left.map(|left: u32| left - 1),
        };
        let identities = identities.iter().map(|files| files.refresh());
        for refreshed in identities.chain(tls.iter().map(|files| files.refresh())) {
            match refreshed {
                Ok(true) => tracing::info!("files of identities or certificates were read again"),
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(
                        "a changed file is refused, and the server keeps the old contents: {error}"
                    );
                }
            }
        }
    }
}

/// Returns a future that completes when the time `lame_duck` has passed after SIGTERM or Ctrl-C.
/// During this time, the server reports that it is not ready and still accepts requests, because a
/// load balancer must notice this state before the server stops accepting requests. After a second
/// signal, the future completes at once.
fn follow_stop_signals(
    domain: Arc<Domain>,
    lame_duck: Duration,
) -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        domain.drain();
        systemd::notify_stopping();
        tokio::select! {
            () = tokio::time::sleep(lame_duck) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
