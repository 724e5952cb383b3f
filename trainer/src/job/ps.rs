//! The `[ps]` section: the servers of a parameter service that hold the tables. Like `[run]`, the
//! section does not change what training computes, so a checkpoint does not store it.

use std::num::NonZeroU64;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use zillion_config::ConfigError;
use zillion_ps::{ClientTls, ClientTlsFiles, EtcdOptions};
use zillion_store::is_bucket;

use super::Job;
use crate::error::{Error, Result};

/// The default largest number of rewinds without a new checkpoint.
const REWINDS: u64 = 10;

/// The settings of the parameter service that holds the tables of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PsConfig {
    /// The addresses of the servers, as in `host:port`. Their order gives the servers their
    /// numbers. The list is empty if etcd names the servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<String>,
    /// The addresses of the members of etcd, in which the servers have registered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub etcd: Vec<String>,
    /// The prefix of the keys of the cluster in etcd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_prefix: Option<String>,
    /// The number of servers that hold the tables, if etcd names them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_count: Option<usize>,
    /// The file with the user and the password of etcd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_user_file: Option<PathBuf>,
    /// The file with the certificate of the authority that has signed those of etcd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_ca: Option<PathBuf>,
    /// The file with the certificate that the trainer shows to etcd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_cert: Option<PathBuf>,
    /// The file with the private key of that certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_key: Option<PathBuf>,
    /// The folder in which the servers write their parts of checkpoints, or the URL of a bucket.
    /// The folder of the run lies below the folder. In a bucket, a run has the name of the folder
    /// of the run.
    pub store: PathBuf,
    /// The file with the token of the servers; absent if they need none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// The file with the authorities that sign the certificates of the servers, in PEM; absent if
    /// the servers do not speak TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_ca: Option<PathBuf>,
    /// The file with the certificate that trainers show, in PEM; absent if they show none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    /// The file with the private key of this certificate, in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// The number of seconds after which a server that does not answer counts as lost.
    #[serde(default = "default_deadline")]
    pub deadline_seconds: NonZeroU64,
    /// The number of seconds for which a trainer waits for servers that are not reachable yet, for
    /// etcd, and for the other trainers.
    #[serde(default = "default_wait")]
    pub wait_seconds: NonZeroU64,
    /// The largest number of times that the run continues from the same checkpoint, after servers
    /// or trainers were lost.
    #[serde(default = "default_rewinds")]
    pub rewinds: u64,
}

fn default_deadline() -> NonZeroU64 {
    NonZeroU64::new(10).expect("a literal above zero")
}

fn default_wait() -> NonZeroU64 {
    NonZeroU64::new(600).expect("a literal above zero")
}

fn default_rewinds() -> u64 {
    REWINDS
}

impl PsConfig {
    /// Reads the TLS settings; `None` if the servers do not speak TLS.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or is not valid.
    pub(crate) fn client_tls(&self) -> Result<Option<ClientTls>> {
        let Some(authority) = self.tls_ca.clone() else { return Ok(None) };
        let identity = self.tls_cert.clone().zip(self.tls_key.clone());
        Ok(Some(ClientTls::open(ClientTlsFiles { authority, identity })?))
    }

    /// Returns the URL of the bucket in which the servers keep their parts of checkpoints. Returns
    /// `None` if they keep them in a folder.
    pub fn bucket(&self) -> Option<String> {
        let url = self.store.to_string_lossy();
        is_bucket(&url).then(|| url.into_owned())
    }

    /// Returns the settings of etcd, or `None` if the servers are listed.
    pub fn etcd_options(&self) -> Option<EtcdOptions> {
        if self.etcd.is_empty() {
            return None;
        }
        let options = EtcdOptions::new(self.etcd.clone());
        Some(EtcdOptions {
            prefix: self.etcd_prefix.clone().unwrap_or(options.prefix),
            user_file: self.etcd_user_file.clone(),
            ca_file: self.etcd_ca.clone(),
            cert_file: self.etcd_cert.clone(),
            key_file: self.etcd_key.clone(),
            ..options
        })
    }

    /// Checks that the servers are either listed or named by etcd.
    fn check_home(&self) -> Result<()> {
        let refuse = |key: &str, message: &str| Err(ConfigError::at(key, message).into());
        let Some(etcd) = self.etcd_options() else {
            let others = [
                ("ps.etcd_prefix", self.etcd_prefix.is_some()),
                ("ps.server_count", self.server_count.is_some()),
                ("ps.etcd_user_file", self.etcd_user_file.is_some()),
                ("ps.etcd_ca", self.etcd_ca.is_some()),
                ("ps.etcd_cert", self.etcd_cert.is_some()),
                ("ps.etcd_key", self.etcd_key.is_some()),
            ];
            if let Some((key, _)) = others.iter().find(|(_, is_set)| *is_set) {
                let message = "has no meaning without `ps.etcd`; set `ps.etcd`, or remove it";
                return refuse(key, message);
            }
            if self.servers.is_empty() {
                let message = "names no server; name at least one server, name etcd in `ps.etcd`, \
                               or remove the section `[ps]`";
                return refuse("ps.servers", message);
            }
            return Ok(());
        };
        if !self.servers.is_empty() {
            let message = "lists servers, but `ps.etcd` is set, which names the servers too; \
                           remove one of the two";
            return refuse("ps.servers", message);
        }
        if self.server_count.is_none_or(|count| count == 0) {
            let message = "must be the number of servers, which etcd does not know; set it to 1 or \
                           more";
            return refuse("ps.server_count", message);
        }
        etcd.check().map_err(|e| ConfigError::at("ps.etcd", e.to_string()).into())
    }

    /// Returns the folder of the run relative to the folder of the servers. All trainers of a run
    /// have the same relative folder, even if they have mounted the folder of the servers in
    /// different places.
    ///
    /// # Errors
    /// Returns an error if the folder of the run does not lie below the folder of the servers.
    pub fn run_in_store(&self, output: &Path) -> Result<String> {
        if self.bucket().is_some() {
            let name = output.file_name().and_then(|name| name.to_str());
            let is_plain =
                |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
            return name.filter(is_plain).map(str::to_owned).ok_or_else(|| {
                let message = format!(
                    "the folder of the run ({}) gives the run its name in the bucket; use letters, \
                     digits, `.`, `_` and `-` in its last part",
                    output.display()
                );
                Error::from(ConfigError::at("run.output", message))
            });
        }
        let absolute = |path: &Path| {
            std::path::absolute(path).map_err(Error::io("cannot resolve the path", path))
        };
        let (store, run) = (absolute(&self.store)?, absolute(output)?);
        let below = run.strip_prefix(&store).ok().filter(|below| {
            let mut parts = below.components().peekable();
            parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
        });
        let below = below.and_then(Path::to_str).ok_or_else(|| {
            let message = format!(
                "the folder of the run ({}) does not lie below the folder of the servers ({}), but \
                 the servers write their parts of checkpoints there; set `run.output` to a folder \
                 below `ps.store`",
                run.display(),
                store.display()
            );
            Error::from(ConfigError::at("ps.store", message))
        })?;
        Ok(below.to_owned())
    }
}

impl Job {
    /// Returns the largest number of rewinds without a new checkpoint.
    pub(crate) fn rewind_limit(&self) -> u64 {
        self.ps.as_ref().map_or(REWINDS, |ps| ps.rewinds)
    }

    /// Returns the BLAKE3 of the settings that decide the result, in hexadecimal.
    pub(crate) fn digest(&self) -> Result<String> {
        let text = toml::to_string(&self.portable()?).map_err(Error::Print)?;
        Ok(blake3::hash(text.as_bytes()).to_hex().to_string())
    }

    /// Checks the settings of the parameter service.
    pub(super) fn check_ps(&self) -> Result<()> {
        self.check_event_time()?;
        let Some(ps) = &self.ps else { return Ok(()) };
        ps.check_home()?;
        let is_address = |server: &String| {
            let parts = server.rsplit_once(':');
            parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        if let Some(server) = ps.servers.iter().find(|server| !is_address(server)) {
            let message = format!("`{server}` is not an address; write it like `host:port`");
            return Err(ConfigError::at("ps.servers", message).into());
        }
        let mut sorted: Vec<&String> = ps.servers.iter().collect();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            let message = format!("names the server `{}` twice; name each server once", pair[0]);
            return Err(ConfigError::at("ps.servers", message).into());
        }
        if ps.tls_cert.is_some() != ps.tls_key.is_some() {
            let message = "needs the other one of `ps.tls_cert` and `ps.tls_key`; name both files";
            let key = if ps.tls_cert.is_some() { "ps.tls_cert" } else { "ps.tls_key" };
            return Err(ConfigError::at(key, message).into());
        }
        if ps.tls_cert.is_some() && ps.tls_ca.is_none() {
            let message = "needs the authorities of the servers' certificates; set `ps.tls_ca`";
            return Err(ConfigError::at("ps.tls_cert", message).into());
        }
        if !self.run.spill.is_empty() {
            let message = "cannot be used with `[ps]`, because the rows are in the memory of the \
                           servers; remove one of the two";
            return Err(ConfigError::at("run.spill", message).into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::smallest::read;
    use super::*;

    #[test]
    fn settings_of_the_service_are_checked_and_not_part_of_the_result() {
        let plain = read("").unwrap();
        assert_eq!((plain.ps.as_ref(), plain.rewind_limit()), (None, 10));
        let job = read("[ps]\nservers = ['a:1', '[::1]:2']\nstore = '/s'\nrewinds = 3").unwrap();
        let ps = job.ps.clone().unwrap();
        assert_eq!((ps.deadline_seconds.get(), job.rewind_limit()), (10, 3));
        assert_eq!(job.portable().unwrap(), plain.portable().unwrap());
        assert_eq!(job.digest().unwrap(), plain.digest().unwrap());
        assert_ne!(job.digest().unwrap(), read("[train]\nepochs = 7").unwrap().digest().unwrap());
        let printed: toml::Table = toml::from_str(&job.in_force().unwrap()).unwrap();
        assert_eq!(Job::from_value(printed.into()).unwrap().ps, job.ps);
        for (ps, expected) in [
            ("store = '/s'", "servers"),
            ("servers = ['a:1']", "store"),
            ("servers = []\nstore = '/s'", "ps.servers"),
            ("servers = ['a']\nstore = '/s'", "`a` is not an address"),
            ("servers = ['a:1', 'b:1', 'a:1']\nstore = '/s'", "`a:1` twice"),
            ("servers = ['a:1']\nstore = '/s'\ndeadline_seconds = 0", "ps.deadline_seconds"),
            ("servers = ['a:1']\nstore = '/s'\ntls_cert = 'c'", "`ps.tls_key`"),
            ("servers = ['a:1']\nstore = '/s'\ntls_key = 'k'", "ps.tls_key"),
            ("servers = ['a:1']\nstore = '/s'\ntls_cert = 'c'\ntls_key = 'k'", "`ps.tls_ca`"),
            ("servers = ['a:1']\nstore = '/s'\n[run.spill]\nuser = '2 GiB'", "run.spill"),
        ] {
            let error = read(&format!("[ps]\n{ps}")).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn servers_are_listed_or_named_by_etcd() {
        let etcd = "etcd = ['http://a:2379']\nserver_count = 3\nstore = '/s'";
        let ps = read(&format!("[ps]\n{etcd}\netcd_prefix = '/zillion/b'")).unwrap().ps.unwrap();
        let options = ps.etcd_options().unwrap();
        assert_eq!((options.prefix.as_str(), ps.server_count), ("/zillion/b", Some(3)));
        let listed = "servers = ['a:1']\nstore = '/s'";
        for (ps, expected) in [
            (format!("{etcd}\nservers = ['a:1']"), "remove one of the two"),
            ("etcd = ['http://a:2379']\nstore = '/s'".to_owned(), "ps.server_count"),
            (etcd.replace('3', "0"), "ps.server_count"),
            (etcd.replace("http://", ""), "not an address of etcd"),
            (etcd.replace("http:", "https:"), "ps.etcd_ca"),
            (format!("{etcd}\netcd_prefix = 'a'"), "ps.etcd_prefix"),
            (format!("{listed}\netcd_prefix = '/a'"), "without `ps.etcd`"),
            (format!("{listed}\nserver_count = 1"), "without `ps.etcd`"),
            (format!("{listed}\netcd_user_file = 'f'"), "without `ps.etcd`"),
            ("etcd = []\nstore = '/s'".to_owned(), "names no server"),
        ] {
            let error = read(&format!("[ps]\n{ps}")).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_folder_of_the_run_lies_below_the_folder_of_the_servers() {
        let job = read("[ps]\nservers = ['a:1']\nstore = '/store'").unwrap();
        let ps = job.ps.unwrap();
        assert_eq!(ps.run_in_store(Path::new("/store/runs/a")).unwrap(), "runs/a");
        let job = read("[ps]\nservers = ['a:1']\nstore = 's3://bucket/prefix'").unwrap();
        let bucket = job.ps.unwrap();
        assert_eq!(bucket.bucket().as_deref(), Some("s3://bucket/prefix"));
        assert_eq!(bucket.run_in_store(Path::new("/home/me/runs/a")).unwrap(), "a");
        let error = bucket.run_in_store(Path::new("runs/a b")).unwrap_err().to_string();
        assert!(error.contains("run.output"), "{error}");
        assert_eq!(ps.bucket(), None);
        for output in ["/store", "/stores/a", "runs/a", "/store/../a"] {
            let error = ps.run_in_store(Path::new(output)).unwrap_err().to_string();
            assert!(error.contains("/store") && error.contains("run.output"), "{error}");
        }
    }
}
