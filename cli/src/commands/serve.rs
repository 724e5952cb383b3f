//! `zillion serve`: serves published versions over HTTP and gRPC.

mod reload;
mod settings;
mod systemd;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use zillion_console::{durable_files, open_registry};
use zillion_serving::{Domain, serve};

use self::reload::Reloader;
use self::settings::Settings;

use crate::args::ServeArgs;

/// The interval at which the server checks whether every model answers. It reports changes to the
/// service manager.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    let settings = Settings::read(args)?;
    settings.set_log_filter()?;
    let mut sockets = systemd::take_sockets()?;
    let registry = open_registry(settings.registry())?;
    let config = settings.config(registry.store().is_remote())?;
    let metrics = crate::metrics::registry("server")?;
    let domain = Arc::new(Domain::start(&config, &registry, &durable_files()?, &metrics)?);
    // One thread serves the network, because it only moves bytes and waits; the pool computes the
    // scores.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let http = listen(sockets.remove("http"), Some(settings.http())).await?;
        let grpc = listen(sockets.remove("grpc"), settings.grpc.as_deref()).await?;
        let listeners: Vec<TcpListener> = http.into_iter().chain(grpc).collect();
        announce(&listeners)?;
        let lame_duck = Duration::from_millis(settings.lame_duck_ms.unwrap_or(0));
        let reporter = tokio::spawn(report_state(domain.clone()));
        let reloader = Reloader::new(args.clone(), settings, domain.clone(), &metrics)?;
        tokio::spawn(reloader.follow_hangups()?);
        let stopped = follow_stop_signals(domain.clone(), lame_duck)?;
        let cut = serve(domain.clone(), listeners, stopped).await?;
        reporter.abort();
        if cut > 0 {
            tracing::warn!("{cut} connections were cut off at the end of the drain time");
        }
        Ok(())
    })
}

/// Returns a listener: the socket that systemd passed to this process, otherwise a new socket on
/// `address`. Returns `None` if neither is given.
async fn listen(
    socket: Option<std::net::TcpListener>,
    address: Option<&str>,
) -> Result<Option<TcpListener>> {
    Ok(match (socket, address) {
        (Some(socket), _) => Some(
            TcpListener::from_std(socket)
                .context("cannot use the socket that systemd handed over")?,
        ),
        (None, Some(address)) => {
            let bound = TcpListener::bind(address).await;
            Some(bound.with_context(|| format!("cannot listen on {address} (HOST:PORT)"))?)
        }
        (None, None) => None,
    })
}

/// Reports to the service manager the state of the server, and that the server is alive. Also
/// reports the moment when every model answers.
async fn report_state(domain: Arc<Domain>) {
    let mut watchdog = systemd::watchdog().map(|limit| tokio::time::interval(limit / 3));
    let mut reported = None;
    let mut interval = tokio::time::interval(REPORT_INTERVAL);
    loop {
        let is_due = async {
            match &mut watchdog {
                Some(watchdog) => drop(watchdog.tick().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = is_due => systemd::notify_alive(),
            _ = interval.tick() => {
                let now = (domain.is_ready(), format_status(&domain));
                if reported.as_ref() != Some(&now) {
                    let (is_ready, text) = &now;
                    if *is_ready { systemd::notify_ready(text) } else { systemd::notify_status(text) }
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
/// server with port 0 reads them.
#[expect(clippy::print_stdout, reason = "the result of a command")]
fn announce(listeners: &[TcpListener]) -> Result<()> {
    for (listener, text) in listeners.iter().zip(["listening on http://", "grpc on "]) {
        println!("{text}{}", listener.local_addr()?);
    }
    Ok(())
}

/// Returns a future that ends `lame_duck` after SIGTERM or Ctrl-C. During that time, the server
/// reports that it is not ready and still accepts requests. So a load balancer can notice this
/// state before the server stops accepting requests. After a second signal, the future ends at
/// once.
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
