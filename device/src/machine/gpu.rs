//! The NVIDIA driver and its devices, as the kernel module reports them. No library is loaded.

use std::fs;
use std::path::Path;

/// The NVIDIA driver and its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpus {
    /// The version of the driver.
    pub driver: String,
    /// The names of the devices.
    pub devices: Vec<String>,
}

/// Returns the driver and its devices, or `None` if no driver is loaded.
pub fn gpus() -> Option<Gpus> {
    gpus_in(Path::new("/proc/driver/nvidia"))
}

fn gpus_in(folder: &Path) -> Option<Gpus> {
    let driver = parse_driver(&fs::read_to_string(folder.join("version")).ok()?)?;
    let mut devices = Vec::new();
    for entry in fs::read_dir(folder.join("gpus")).into_iter().flatten().flatten() {
        let text = fs::read_to_string(entry.path().join("information")).unwrap_or_default();
        devices.extend(parse_device(&text));
    }
    devices.sort();
    Some(Gpus { driver, devices })
}

/// Returns the first word of the first line that has the form of a version, such as `550.54.15`.
fn parse_driver(text: &str) -> Option<String> {
    let is_version =
        |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

fn parse_device(text: &str) -> Option<String> {
    let model = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
    Some(model.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_driver_are_parsed() {
        let version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5 2024\n";
        assert_eq!(parse_driver(version).as_deref(), Some("550.54.15"));
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release\n";
        assert_eq!(parse_driver(open).as_deref(), Some("570.86.10"));
        assert_eq!(parse_driver(""), None);
        let device = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 57\n";
        assert_eq!(parse_device(device).as_deref(), Some("NVIDIA H100 80GB HBM3"));
    }

    #[test]
    fn devices_are_found_below_the_driver() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(gpus_in(folder.path()), None);
        fs::write(folder.path().join("version"), "NVRM version: x 1.2.3 y").unwrap();
        let device = folder.path().join("gpus/0000:01:00.0");
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("information"), "Model: \t One\n").unwrap();
        let found = gpus_in(folder.path()).unwrap();
        assert_eq!(found, Gpus { driver: "1.2.3".to_owned(), devices: vec!["One".to_owned()] });
    }
}
