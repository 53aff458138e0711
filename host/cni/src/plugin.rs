//! One call from its first byte to its last: read, dispatch, print. Everything that can go wrong ends in a CNI error
//! object.

use std::ffi::OsString;
use std::io::Read;

use serde_json::json;
use wipam_rpc::v1;

use crate::ask::Daemon;
use crate::conf::{self, Conf};
use crate::env::{self, Lookup, Target, Verb};
use crate::error::{CniError, INTERNAL};
use crate::log::Log;
use crate::version::Version;
use crate::{add, del, observe};

/// What the process prints and returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// A result or an error object; empty where CNI wants nothing.
    pub stdout: String,
    /// A line for whoever looks at the runtime's log; empty on success.
    pub stderr: String,
    /// 0 or 1.
    pub code: u8,
}

/// What a verb works with.
#[derive(Debug)]
pub struct Call<'a> {
    /// The verb, for messages.
    pub verb: Verb,
    /// The configuration.
    pub conf: &'a Conf,
    /// The log.
    pub log: &'a Log,
}

impl Call<'_> {
    /// The daemon of this configuration.
    pub fn daemon(&self) -> Result<Daemon, CniError> {
        Ok(Daemon::new(self.conf.socket()?))
    }
}

/// Serves one call: environment, configuration, and the name the program was started under.
pub fn run(env: Lookup, stdin: &mut dyn Read, program: &str) -> Outcome {
    let mut version = None;
    match serve(env, stdin, program, &mut version) {
        Ok(stdout) => Outcome { stdout, stderr: String::new(), code: 0 },
        Err(error) => Outcome { stdout: error.to_json(version), stderr: format!("wipam-cni: {error}\n"), code: 1 },
    }
}

fn serve(env: Lookup, stdin: &mut dyn Read, program: &str, version: &mut Option<Version>) -> Result<String, CniError> {
    let verb = env::verb(env)?;
    let raw = conf::read_stdin(stdin)?;
    if verb == Verb::Version {
        return versions(&raw);
    }
    // Variables are checked before the configuration, as libcni's skeleton does.
    let target = match verb {
        Verb::Add | Verb::Del | Verb::Check => Some(env::target(env, verb)?),
        _ => None,
    };
    let (said, map) = conf::decode(&raw)?;
    *version = Some(said);
    said.allows(verb)?;
    let conf = Conf::new(raw, said, map, program)?;
    let log = open_log(&conf, verb, target.as_ref())?;
    log.debug(format_args!("called as {:?} plugin, cniVersion {}", conf.role, said.as_str()));
    let call = Call { verb, conf: &conf, log: &log };
    let answer = dispatch(&call, target.as_ref());
    match &answer {
        Ok(_) => log.info(format_args!("done")),
        Err(error) => log.error(format_args!("failed with code {}: {error}", error.code)),
    }
    answer
}

fn dispatch(call: &Call, target: Option<&Target>) -> Result<String, CniError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| CniError::new(INTERNAL, format!("cannot start: {e}"), "is the node out of file descriptors?"))?;
    runtime.block_on(async {
        match (call.verb, target) {
            (Verb::Add, Some(target)) => add::add(call, target).await,
            (Verb::Del, Some(target)) => del::del(call, target).await.map(|()| String::new()),
            (Verb::Check, Some(target)) => observe::check(call, target).await.map(|()| String::new()),
            (Verb::Status, _) => observe::status(call).await.map(|()| String::new()),
            (Verb::Gc, _) => observe::gc(call).await.map(|()| String::new()),
            // serve() answers VERSION itself and gives the other verbs their target.
            _ => Err(CniError::new(INTERNAL, "no target for the verb", "report this as a bug")),
        }
    })
}

/// A DEL or GC works without its log; elsewhere a wrong setting is told.
fn open_log(conf: &Conf, verb: Verb, target: Option<&Target>) -> Result<Log, CniError> {
    let file = match (conf.log_file(), verb) {
        (Err(_), Verb::Del | Verb::Gc) => None,
        (file, _) => file?,
    };
    let mut about = format!("{} network={}", verb.as_str(), conf.network);
    if let Some(t) = target {
        about = format!("{about} container={} ifname={}", t.container_id, t.ifname);
        if !t.args.pod_name.is_empty() {
            about = format!("{about} pod={}/{}", t.args.pod_namespace, t.args.pod_name);
        }
    }
    Ok(Log::open(file, conf.log_level(), about))
}

/// VERSION answers in the version it is asked in; without input, in the newest.
fn versions(raw: &[u8]) -> Result<String, CniError> {
    let version = match raw.iter().all(u8::is_ascii_whitespace) {
        true => Version::NEWEST,
        false => match conf::decode(raw)?.1.get("cniVersion") {
            None => Version::NEWEST,
            Some(_) => conf::decode(raw)?.0,
        },
    };
    let supported: Vec<_> = Version::ALL.iter().map(|v| v.as_str()).collect();
    Ok(format!("{:#}\n", json!({"cniVersion": version.as_str(), "supportedVersions": supported})))
}

/// The pod as ipamd wants it.
pub(crate) fn pod(target: &Target) -> v1::Pod {
    v1::Pod {
        namespace: target.args.pod_namespace.clone(),
        name: target.args.pod_name.clone(),
        uid: target.args.pod_uid.clone(),
    }
}

/// CNI_NETNS as ipamd wants it; it came as text.
pub(crate) fn netns_text(target: &Target) -> String {
    target.netns.as_ref().map(|p| p.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The name the program was started under, without directories; empty when it has none.
pub fn program_name(arg0: Option<OsString>) -> String {
    arg0.and_then(|a| std::path::Path::new(&a).file_name().map(|n| n.to_string_lossy().into_owned()))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version_of(stdin: &str) -> Outcome {
        run(&|_: &str| Some("VERSION".into()), &mut stdin.as_bytes(), "wipam-cni")
    }

    #[test]
    fn version_answers_as_asked() {
        for (stdin, said) in [("", "1.1.0"), ("{}", "1.1.0"), ("{\"cniVersion\":\"0.4.0\"}", "0.4.0")] {
            let outcome = version_of(stdin);
            let object: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
            assert_eq!(object["cniVersion"], said);
            assert_eq!(object["supportedVersions"].as_array().unwrap().len(), 7);
        }
        assert_eq!(version_of("{").code, 1);
    }

    #[test]
    fn errors_carry_the_version_of_the_request() {
        let env = |name: &str| (name == "CNI_COMMAND").then(|| OsString::from("STATUS"));
        let outcome = run(&env, &mut "{\"cniVersion\":\"1.0.0\",\"name\":\"n\"}".as_bytes(), "wipam-cni");
        let object: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!((&object["cniVersion"], &object["code"]), (&json!("1.0.0"), &json!(1)));
        assert!(outcome.stderr.starts_with("wipam-cni: STATUS does not exist"));
    }
}
