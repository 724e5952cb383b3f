//! The parts that the commands for servers share: the proof of identity, the addresses of servers,
//! and durations.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use zillion_ps::admin::AdminClient;
use zillion_ps::{ClientTls, ClientTlsFiles, Token, open_etcd};

use crate::args::{EtcdArgs, PsAccessArgs};

/// The proof of identity that a command shows to servers, and its patience.
pub(super) struct Access {
    pub(super) token: Option<Token>,
    pub(super) tls: Option<ClientTls>,
    pub(super) deadline: Duration,
}

impl Access {
    /// Reads the files that the arguments name.
    pub(super) fn open(args: &PsAccessArgs) -> Result<Self> {
        let identity = args.tls_cert.clone().zip(args.tls_key.clone());
        let files = args.tls_ca.clone().map(|authority| ClientTlsFiles { authority, identity });
        Ok(Self {
            token: args.token_file.as_deref().map(Token::read).transpose()?,
            tls: files.map(ClientTls::open).transpose()?,
            deadline: seconds("--deadline-seconds", args.deadline_seconds)?,
        })
    }

    /// Connects to the administration of a server.
    pub(super) fn connect(&self, server: &str) -> Result<AdminClient> {
        let Self { token, tls, deadline } = self;
        Ok(AdminClient::connect(server, token.as_ref(), tls.as_ref(), *deadline)?)
    }

    /// Connects to the first server that can be reached.
    ///
    /// # Errors
    /// Returns the error of the first server if none can be reached.
    pub(super) fn connect_any(&self, servers: &[String]) -> Result<AdminClient> {
        let mut failure = None;
        for server in servers {
            match self.connect(server) {
                Ok(client) => return Ok(client),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.context("no server is named; give the address of a server")?)
    }
}

/// Returns the addresses of servers: the named ones, or those that are registered in etcd, in the
/// order of their numbers.
///
/// # Errors
/// Returns an error if etcd cannot be asked, or if no server is registered in it.
pub(super) fn find_servers(named: &[String], etcd: &EtcdArgs) -> Result<Vec<String>> {
    let Some(options) = etcd.options() else { return Ok(named.to_vec()) };
    let members = open_etcd(&options)?.members()?;
    if members.is_empty() {
        bail!(
            "no server is registered in etcd at {} below `{}`; start servers with the same --etcd \
             and --etcd-prefix",
            options.endpoints.join(", "),
            options.prefix
        );
    }
    Ok(members.into_values().map(|member| member.address).collect())
}

/// Returns the duration of an argument.
pub(super) fn seconds(argument: &str, value: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(value)
        .with_context(|| format!("{argument} {value} is not a duration; give a number of seconds"))
}
