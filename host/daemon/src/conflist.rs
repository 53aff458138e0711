//! The CNI configuration: its presence tells the runtime that this node can run pods.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::settings::Settings;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum ConflistError {
    /// The template cannot be used.
    #[error("the conflist template {} cannot be used: {cause}", path.display())]
    Template {
        /// Its path.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// The disk said no.
    #[error("the conflist {} cannot be written: {source}", path.display())]
    Write {
        /// Its path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The text: the template's, or the built-in one, which runs our plugin alone.
///
/// # Errors
/// A template that cannot be read or is no configuration list.
pub fn text(settings: &Settings) -> Result<String, ConflistError> {
    if let Some(path) = &settings.paths.conflist_template {
        let error = |cause: String| ConflistError::Template { path: path.clone(), cause };
        let text = fs::read_to_string(path).map_err(|e| error(e.to_string()))?;
        let parsed: Value = serde_json::from_str(&text).map_err(|e| error(e.to_string()))?;
        if !parsed.get("plugins").is_some_and(Value::is_array) || !parsed.get("name").is_some_and(Value::is_string) {
            return Err(error("it has no \"name\" and \"plugins\"".into()));
        }
        return Ok(text);
    }
    let mut plugin = json!({ "type": "wipam-cni" });
    let mut say = |key: &str, path: &Path, default: &str| {
        if path != Path::new(default) {
            plugin[key] = path.to_string_lossy().into();
        }
    };
    say("socket", &settings.paths.socket, wipam_rpc::DEFAULT_SOCKET);
    say("queueDir", &settings.paths.queue_dir, wipam_rpc::queue::DEFAULT_DIR);
    // 1.0.0: runtimes of today's distributions know no newer one; the plugin speaks 1.1.0 too.
    let list = json!({ "cniVersion": "1.0.0", "name": settings.pool.network, "plugins": [plugin] });
    Ok(format!("{list:#}\n"))
}

/// Writes it if it is not there as it should be; says whether it was written. The temporary file is in the same
/// directory, since runtimes do not notice a rename from elsewhere.
///
/// # Errors
/// As [`text`], or path and errno.
pub fn write(settings: &Settings) -> Result<bool, ConflistError> {
    let Some(path) = &settings.paths.conflist else { return Ok(false) };
    let text = text(settings)?;
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(false);
    }
    let error = |source| ConflistError::Write { path: path.clone(), source };
    put(path, &text).map_err(error)?;
    Ok(true)
}

fn put(path: &Path, text: &str) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(dir)?;
    // A dot in front and another ending: no runtime takes it for a configuration.
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let temp = dir.join(format!(".{name}.tmp"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&temp)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&temp, path)?;
    File::open(dir)?.sync_all()
}

/// Takes it away: the node gets no new pods from now on.
///
/// # Errors
/// Path and errno.
pub fn remove(settings: &Settings) -> Result<(), ConflistError> {
    let Some(path) = &settings.paths.conflist else { return Ok(()) };
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(ConflistError::Write { path: path.clone(), source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn settings(pairs: &[(&str, &Path)]) -> Settings {
        let env: BTreeMap<String, String> =
            pairs.iter().map(|(k, v)| ((*k).to_owned(), v.to_string_lossy().into_owned())).collect();
        crate::settings::from_text("", "", &env).unwrap().settings
    }

    #[test]
    fn it_is_written_once_names_what_differs_and_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("net.d/10-aws.conflist");
        let settings = settings(&[("WIPAM_CONFLIST", &path), ("WIPAM_SOCKET", Path::new("/run/other.sock"))]);
        assert!(write(&settings).unwrap());
        assert!(!write(&settings).unwrap());
        let list: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(list["plugins"][0], json!({ "type": "wipam-cni", "socket": "/run/other.sock" }));
        assert_eq!(fs::read_dir(dir.path().join("net.d")).unwrap().count(), 1);
        remove(&settings).unwrap();
        remove(&settings).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_template_is_checked_and_taken_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let (template, path) = (dir.path().join("t"), dir.path().join("c.conflist"));
        let settings = settings(&[("WIPAM_CONFLIST", &path), ("WIPAM_CONFLIST_TEMPLATE", &template)]);
        assert!(write(&settings).unwrap_err().to_string().contains("/t cannot be used"));
        fs::write(&template, "{}").unwrap();
        assert!(write(&settings).unwrap_err().to_string().contains("plugins"));
        fs::write(&template, "{\"name\":\"n\", \"plugins\":[]}").unwrap();
        assert!(write(&settings).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"name\":\"n\", \"plugins\":[]}");
    }
}
