//! `zillion serve`: published versions behind HTTP and gRPC.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use zillion_device::machine;
use zillion_serving::{Domain, Follow, Limits, ServeConfig, serve};

use super::explain::cache_beside;
use super::{files, model};
use crate::args::ServeArgs;

pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    let config = config(args);
    let registry = model::registry(&args.registry)?;
    let metrics = prometheus::Registry::new();
    let domain = Arc::new(Domain::start(&config, &registry, &files()?, &metrics)?);
    // One thread for the network: it moves bytes and waits, the pool does the work.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let http = listen(&args.http).await?;
        let grpc = match &args.grpc {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        announce(&http, grpc.as_ref())?;
        let listeners = [http].into_iter().chain(grpc).collect();
        let lame_duck = Duration::from_millis(args.lame_duck_ms);
        let stopped = stopped(domain.clone(), lame_duck)?;
        let cut = serve(domain.clone(), listeners, stopped).await?;
        if cut > 0 {
            tracing::warn!("{cut} connections were cut off at the end of the drain time");
        }
        Ok(())
    })
}

async fn listen(address: &str) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}

/// Says where the server is, for people and for whoever started it with port 0.
#[expect(clippy::print_stdout, reason = "the result of a command")]
fn announce(http: &TcpListener, grpc: Option<&TcpListener>) -> Result<()> {
    println!("listening on http://{}", http.local_addr()?);
    if let Some(grpc) = grpc {
        println!("grpc on {}", grpc.local_addr()?);
    }
    Ok(())
}

/// Ends with SIGTERM or Ctrl-C, and after it so much time in which the server is not ready and goes on to take requests:
/// whoever sends them there has to see the one before the other. A second signal ends it at once.
fn stopped(domain: Arc<Domain>, lame_duck: Duration) -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        domain.drain();
        tokio::select! {
            () = tokio::time::sleep(lame_duck) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

fn config(args: &ServeArgs) -> ServeConfig {
    let millis = Duration::from_millis;
    ServeConfig {
        models: args.model.iter().map(|text| follow(text)).collect(),
        cache: args.cache.clone().unwrap_or_else(|| cache_beside(&args.registry)),
        threads: args.threads.unwrap_or_else(machine::cpus).get(),
        poll: millis(args.poll_ms),
        retain: args.retain,
        server: args.name.clone().unwrap_or_else(name),
        model_control: args.model_control,
        limits: Limits {
            body_bytes: args.max_body_bytes,
            rows: args.max_rows,
            values: args.max_values,
            waiting: args.max_waiting,
            connections: args.max_connections,
            request_time: millis(args.request_ms),
            head_time: millis(args.receive_ms),
            body_time: millis(args.receive_ms),
            drain_time: millis(args.drain_ms),
        },
        ..ServeConfig::default()
    }
}

/// `name`, `name@latest` or `name@pointer`.
fn follow(text: &str) -> (String, Follow) {
    match text.split_once('@') {
        None => (text.to_owned(), Follow::Pointer(zillion_registry::STABLE.to_owned())),
        Some((name, "latest")) => (name.to_owned(), Follow::Latest),
        Some((name, pointer)) => (name.to_owned(), Follow::Pointer(pointer.to_owned())),
    }
}

/// A name that no other server of this registry has.
fn name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let host: String = host.trim().chars().filter(plain).take(60).collect();
    format!("server-{host}-{}", std::process::id())
}
