//! Packages of Debian that tests unpack beside the build. Nothing is installed.

use std::path::PathBuf;
use std::process::Command;

use crate::clients::target;

/// Unpacks a package into a folder of its own and then moves it, so that an interrupted run leaves
/// nothing that looks complete. The arguments are the folder, the package, a file of the package,
/// and the SHA-256 of the package, which can be empty.
const UNPACK: &str = r#"
part=$(mktemp -d "$1/part.XXXXXX") && cd "$part" || exit 1
if apt-get -qq download "$2" && { [ -z "$4" ] || echo "$4" ./*.deb | sha256sum --check --quiet; } &&
    dpkg -x ./*.deb .; then
    mv -T usr "$1/usr" 2>/dev/null || [ -e "$1/$3" ]; code=$?
else
    code=1
fi
rm -rf -- "$part"
exit $code
"#;

/// A file in a package of Debian.
pub(crate) struct Packaged {
    /// The folder beside the build into which the package is unpacked.
    pub(crate) folder: &'static str,
    /// The name of the package, with its version if there is only one right version.
    pub(crate) package: &'static str,
    /// The SHA-256 of the package, or an empty text if any version is right.
    pub(crate) sha256: &'static str,
    /// The path of the file in the package.
    pub(crate) file: &'static str,
}

impl Packaged {
    /// Returns the path of the file, which is unpacked if that was not done before. Returns `None`
    /// if Debian's servers cannot be reached, or if they have another package.
    pub(crate) fn unpack(&self) -> Option<PathBuf> {
        let cache = target().join(self.folder);
        let file = cache.join(self.file);
        if !file.exists() {
            std::fs::create_dir_all(&cache).expect("the build folder can be written");
            let mut unpack = Command::new("sh");
            unpack.args(["-c", UNPACK, "sh"]).arg(&cache);
            let unpacked = unpack.args([self.package, self.file, self.sha256]).output();
            unpacked.ok().filter(|output| output.status.success())?;
        }
        Some(file)
    }
}
