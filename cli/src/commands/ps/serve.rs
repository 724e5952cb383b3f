//! `zillion ps serve`: a server of the parameter service.

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use zillion_console::durable_files;
use zillion_device::machine::raise_file_limit;
use zillion_ps::server::{Drained, Server, ServerOptions};
use zillion_ps::{Directory, EtcdOptions, Member, TlsFiles, Token, Upkeep, open_etcd};

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
        scratch: args.scratch.clone(),
        files: durable_files()?,
        ..ServerOptions::new(&args.listen, &args.store)
    };
    let etcd = args
        .etcd
        .options()
        .map(|options| EtcdOptions { lease_seconds: args.etcd_lease_seconds, ..options });
    let registry = etcd.map(|etcd| open_etcd(&etcd)).transpose()?;
    let server = Server::start(options)?;
    // Until the server is registered, a signal ends the process at once.
    let registration = registry.map(|registry| register(&*registry, args, &server)).transpose()?;
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("cannot listen for signals")?;
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
    // Trainers that look for servers from here on do not find this one.
    drop(registration);
    server.stop();
    Ok(())
}

/// Registers the server, so that trainers find it.
fn register(registry: &dyn Directory, args: &PsServeArgs, server: &Server) -> Result<Upkeep> {
    let listens = server.address();
    let address = match &args.advertise {
        Some(address) => address.clone(),
        None if listens.ip().is_unspecified() => bail!(
            "the server listens on `{listens}`, which is no address by which trainers can reach it; \
             give its own address with `--advertise`"
        ),
        None => listens.to_string(),
    };
    let member = Member {
        id: args.id,
        address,
        boot: server.figures().boot,
        lease_seconds: args.etcd_lease_seconds,
        is_leaving: false,
    };
    Ok(registry.register(member)?)
}

/// Serves the series of the server and of its process.
fn serve_metrics(address: &str, server: &Server) -> Result<Listener> {
    let registry = metrics::registry("ps")?;
    registry.register(Box::new(ParameterServerMetrics::new(server.figures_handle())))?;
    Listener::start(address, registry)
}
