//! The settings of a client of etcd.

use std::path::{Path, PathBuf};

use crate::error::{Result, start_error};

/// The longest prefix of keys.
const LONGEST_PREFIX: usize = 200;

/// The shortest and the longest lease of a server in seconds. etcd itself knows no shorter one.
const LEASES: std::ops::RangeInclusive<u64> = 2..=3600;

/// The settings of a client of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdOptions {
    /// The addresses of the members of etcd: `http://host:port` or `https://host:port`.
    pub endpoints: Vec<String>,
    /// The prefix of all keys of the cluster, as in `/zillion/clicks`.
    pub prefix: String,
    /// The file with the user and the password, as in `user:password`; `None` if etcd asks for
    /// none.
    pub user_file: Option<PathBuf>,
    /// The file with the certificate of the authority that has signed those of etcd. It is needed
    /// for `https`.
    pub ca_file: Option<PathBuf>,
    /// The file with the certificate that this process shows.
    pub cert_file: Option<PathBuf>,
    /// The file with the private key of the certificate that this process shows.
    pub key_file: Option<PathBuf>,
    /// The seconds after which a registered server without signs of life leaves the directory.
    pub lease_seconds: u64,
}

impl EtcdOptions {
    /// The default prefix of keys.
    pub const PREFIX: &str = "/zillion";
    /// The default lease of a server in seconds.
    pub const LEASE_SECONDS: u64 = 10;

    /// Returns the default settings for these members of etcd.
    pub fn new(endpoints: Vec<String>) -> Self {
        Self {
            endpoints,
            prefix: Self::PREFIX.to_owned(),
            user_file: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            lease_seconds: Self::LEASE_SECONDS,
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// Returns an error that names the first wrong setting.
    pub fn check(&self) -> Result<()> {
        let refuse = |problem: String| Err(start_error(problem));
        if self.endpoints.is_empty() {
            return refuse("`ps.etcd` names no member of etcd; name at least one".to_owned());
        }
        if let Some(endpoint) = self.endpoints.iter().find(|endpoint| !is_endpoint(endpoint)) {
            return refuse(format!(
                "`{endpoint}` in `ps.etcd` is not an address of etcd; write it like \
                 `http://host:2379`"
            ));
        }
        let path = self.prefix.strip_prefix('/').unwrap_or_default();
        let is_plain = |part: &str| {
            let is_sign = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            !part.is_empty() && part.bytes().all(is_sign)
        };
        if self.prefix.len() > LONGEST_PREFIX || !path.split('/').all(is_plain) {
            return refuse(format!(
                "`ps.etcd_prefix` is `{}`; write at most {LONGEST_PREFIX} letters, digits, `-`, \
                 `_` and `.` in parts that begin with `/`, as in `/zillion/clicks`",
                self.prefix
            ));
        }
        let is_encrypted = |endpoint: &String| endpoint.starts_with("https://");
        if self.endpoints.iter().any(is_encrypted) && self.ca_file.is_none() {
            return refuse(
                "`ps.etcd` has an address with `https`, but `ps.etcd_ca` is not set; name the file \
                 with the certificate of the authority"
                    .to_owned(),
            );
        }
        let files = [&self.ca_file, &self.cert_file, &self.key_file];
        if files.into_iter().any(Option::is_some) && !self.endpoints.iter().all(is_encrypted) {
            return refuse(
                "files of certificates are set, but an address in `ps.etcd` begins with `http://`; \
                 write `https://`, or remove `ps.etcd_ca`, `ps.etcd_cert` and `ps.etcd_key`"
                    .to_owned(),
            );
        }
        if self.cert_file.is_some() != self.key_file.is_some() {
            return refuse(
                "only one of `ps.etcd_cert` and `ps.etcd_key` is set; set both or none".to_owned(),
            );
        }
        if !LEASES.contains(&self.lease_seconds) {
            return refuse(format!(
                "`ps.etcd_lease_seconds` is {}; give {} to {}",
                self.lease_seconds,
                LEASES.start(),
                LEASES.end()
            ));
        }
        Ok(())
    }
}

/// Returns whether a text is an address such as `http://host:2379`.
fn is_endpoint(text: &str) -> bool {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let parts = host.and_then(|host| host.rsplit_once(':'));
    parts.is_some_and(|(host, port)| {
        !host.is_empty() && !host.contains(['/', ' ', '@']) && port.parse::<u16>().is_ok()
    })
}

/// Reads a file that a setting names.
#[cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "a part is etcd's"))]
pub(super) fn read_file(setting: &str, path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| {
        start_error(format!("cannot read the file `{}` of `{setting}`: {e}", path.display()))
    })
}

/// Reads the user and the password from a file.
#[cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "a part is etcd's"))]
pub(super) fn read_user(path: &Path) -> Result<(String, String)> {
    let text = String::from_utf8(read_file("ps.etcd_user_file", path)?).ok();
    let pair = text.as_deref().map(str::trim).and_then(|text| text.split_once(':'));
    let pair = pair.filter(|(user, password)| !user.is_empty() && !password.is_empty());
    pair.map(|(user, password)| (user.to_owned(), password.to_owned())).ok_or_else(|| {
        start_error(format!(
            "the file `{}` of `ps.etcd_user_file` does not hold a user and a password; write them \
             into one line like `user:password`",
            path.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(change: impl FnOnce(&mut EtcdOptions)) -> EtcdOptions {
        let mut options = EtcdOptions::new(vec!["http://127.0.0.1:2379".to_owned()]);
        change(&mut options);
        options
    }

    #[test]
    fn wrong_settings_are_named() {
        options(|_| {}).check().unwrap();
        let encrypted = |o: &mut EtcdOptions| o.endpoints = vec!["https://[::1]:2379".to_owned()];
        let file = || Some(PathBuf::from("file"));
        options(|o| {
            encrypted(o);
            (o.ca_file, o.cert_file, o.key_file) = (file(), file(), file());
        })
        .check()
        .unwrap();
        let refused = |expected: &str, change: &dyn Fn(&mut EtcdOptions)| {
            let error = options(change).check().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        refused("`ps.etcd` names no", &|o| o.endpoints.clear());
        for bad in ["localhost:2379", "http://localhost", "http://a:1/b", "http://:1", "ftp://a:1"]
        {
            refused(bad, &|o| o.endpoints.push(bad.to_owned()));
        }
        for bad in ["", "zillion", "/", "/a/", "/a//b", "/a b", &"/a".repeat(101)] {
            refused("ps.etcd_prefix", &|o| o.prefix = bad.to_owned());
        }
        refused("ps.etcd_ca", &encrypted);
        refused("ps.etcd_ca", &|o| o.ca_file = file());
        refused("set both or none", &|o| {
            encrypted(o);
            (o.ca_file, o.key_file) = (file(), file());
        });
        refused("ps.etcd_lease_seconds", &|o| o.lease_seconds = 1);
        refused("ps.etcd_lease_seconds", &|o| o.lease_seconds = 3601);
    }

    #[test]
    fn the_user_and_the_password_are_read_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("user");
        assert!(read_user(&path).unwrap_err().to_string().contains("ps.etcd_user_file"));
        for bad in ["", "user", ":password", "user:"] {
            std::fs::write(&path, bad).unwrap();
            assert!(read_user(&path).unwrap_err().to_string().contains("user:password"));
        }
        std::fs::write(&path, "root:a:b\n").unwrap();
        assert_eq!(read_user(&path).unwrap(), ("root".to_owned(), "a:b".to_owned()));
    }
}
