//! `zillion ps serve`: a server of the parameter service.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use zillion_console::durable_files;
use zillion_device::machine::raise_file_limit;
use zillion_ps::server::{Drained, Server, ServerOptions};
use zillion_ps::{TlsFiles, Token};

use super::access::seconds;
use crate::args::PsServeArgs;
use crate::metrics::{self, Listener, ParameterServerMetrics};

/// The number of bytes of a MiB.
const MIB: u64 = 1 << 20;

#[expect(clippy::print_stdout, reason = "the result of a command")]
pub(crate) fn run(args: &PsServeArgs) -> Result<()> {
    // Each connection is an open file, and the usual limit is lower than that of connections.
    if raise_file_limit().is_none() {
        tracing::warn!("cannot raise the limit of open files; see `LimitNOFILE` of the service");
    }
    let lease = seconds("--lease-seconds", args.lease_seconds)?;
    let drain = seconds("--drain-seconds", args.drain_seconds)?;
    let options = ServerOptions {
        id: args.id,
        threads: args.threads,
        shards: args.shards,
        max_frame_bytes: args.max_frame_mib.saturating_mul(MIB),
        in_flight_bytes: args.in_flight_mib.saturating_mul(MIB),
        total_in_flight_bytes: args.total_in_flight_mib.saturating_mul(MIB),
        max_connections: args.max_connections,
        lease,
        token: args.token_file.as_deref().map(Token::read).transpose()?,
        tls: args.tls_cert.clone().zip(args.tls_key.clone()).map(|(certificate, key)| TlsFiles {
            certificate,
            key,
            client_authority: args.tls_client_ca.clone(),
            require_client: args.tls_client_ca.is_some(),
        }),
        deduplicates: !args.without_deduplication,
        files: durable_files()?,
        ..ServerOptions::new(&args.listen, &args.store)
    };
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("cannot listen for signals")?;
    let server = Server::start(options)?;
    let listener =
        args.metrics.as_ref().map(|address| serve_metrics(address, &server)).transpose()?;
    if let Some(listener) = &listener {
        eprintln!("metrics on {}", listener.url());
    }
    // Programs that start a server with port 0 read its address from this line.
    println!("listening on {}", server.address());
    let signal = signals.forever().next();
    tracing::info!(?signal, "the server stops");
    if !drain.is_zero() {
        // A second signal ends the server at once.
        match server.drain(drain, || signals.pending().next().is_some()) {
            Drained::Idle => {}
            Drained::Saved => eprintln!("the run has written a checkpoint; the server ends"),
            Drained::Unsaved => {
                eprintln!("the server ends without a new checkpoint of the run");
            }
        }
    }
    server.stop();
    Ok(())
}

/// Serves the series of the server and of its process.
fn serve_metrics(address: &str, server: &Server) -> Result<Listener> {
    let registry = metrics::registry("ps")?;
    registry.register(Box::new(ParameterServerMetrics::new(server.figures_handle())))?;
    Listener::start(address, registry)
}
