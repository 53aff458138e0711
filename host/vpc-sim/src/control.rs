//! The control surface for tests and the demo, in JSON beside the EC2 API:
//!
//! | request | does |
//! |---|---|
//! | `GET /_sim/state` | everything as it is now, whatever the lags |
//! | `GET /_sim/calls` | call counters by action |
//! | `GET /_sim/faults` | the fault rules |
//! | `POST /_sim/faults` | adds a rule, or a list of rules |
//! | `DELETE /_sim/faults` | removes all rules |
//! | `POST /_sim/instances` | starts an instance, answers its id |
//! | `DELETE /_sim/instances/ID` | terminates it |
//! | `POST /_sim/subnets/ID/occupy/N`, `…/vacate/N` | others take, or give back, up to N addresses |

use hyper::Method;
use serde::Serialize;
use serde_json::{Value, json};

use crate::http::{Asked, Reply};
use crate::model::{FaultRule, InstanceConfig};
use crate::sim::Sim;

/// One rule or many.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Rules {
    Many(Vec<FaultRule>),
    One(FaultRule),
}

/// Answers a request under `/_sim/`.
pub(crate) fn answer(sim: &Sim, asked: &Asked) -> Reply {
    let path: Vec<&str> = asked.path.trim_matches('/').split('/').skip(1).collect();
    match (&asked.method, path.as_slice()) {
        (&Method::GET, ["state"]) => json_reply(200, &state(sim)),
        (&Method::GET, ["calls"]) => json_reply(200, sim.lock().calls()),
        (&Method::GET, ["faults"]) => json_reply(200, &sim.lock().faults().collect::<Vec<_>>()),
        (&Method::DELETE, ["faults"]) => {
            sim.lock().clear_faults();
            json_reply(200, &json!({}))
        }
        (&Method::POST, ["faults"]) => add_faults(sim, &asked.body),
        (&Method::POST, ["instances"]) => run_instance(sim, &asked.body),
        (&Method::DELETE, ["instances", id]) => match sim.with(|vpc, now_ms| vpc.terminate_instance(now_ms, id)) {
            true => json_reply(200, &json!({})),
            false => refuse(404, "no such running instance"),
        },
        (&Method::POST, ["subnets", id, verb @ ("occupy" | "vacate"), count]) => match count.parse() {
            Ok(count) => {
                let done = match *verb {
                    "occupy" => sim.lock().occupy(id, count),
                    _ => sim.lock().vacate(id, count),
                };
                json_reply(200, &json!({ "addresses": done }))
            }
            Err(_) => refuse(400, "the last part of the path must be a number of addresses"),
        },
        _ => refuse(404, "unknown path or method; see the documentation of the module `control`"),
    }
}

fn add_faults(sim: &Sim, body: &[u8]) -> Reply {
    let rules = match serde_json::from_slice::<Value>(body).map(serde_json::from_value::<Rules>) {
        Ok(Ok(Rules::Many(rules))) => rules,
        Ok(Ok(Rules::One(rule))) => vec![rule],
        Ok(Err(_)) => {
            // The untagged form forgets what was wrong; ask again for one rule to say it.
            let cause = serde_json::from_slice::<FaultRule>(body).err().map(|error| error.to_string());
            return refuse(400, &format!("not a fault rule: {}", cause.unwrap_or_default()));
        }
        Err(error) => return refuse(400, &format!("not JSON: {error}")),
    };
    let mut vpc = sim.lock();
    rules.into_iter().for_each(|rule| vpc.add_fault(rule));
    json_reply(200, &json!({}))
}

fn run_instance(sim: &Sim, body: &[u8]) -> Reply {
    let config: InstanceConfig = match serde_json::from_slice(body) {
        Ok(config) => config,
        Err(error) => return refuse(400, &format!("not an instance: {error}")),
    };
    match sim.with(|vpc, now_ms| vpc.run_instance(now_ms, config)) {
        Ok(id) => json_reply(200, &json!({ "id": id })),
        Err(error) => refuse(400, &error.to_string()),
    }
}

fn state(sim: &Sim) -> Value {
    sim.with(|vpc, now_ms| {
        let enis = vpc.enis(now_ms);
        let enis: Vec<_> = enis.iter().map(AsRef::as_ref).collect();
        json!({
            "now-ms": now_ms,
            "generation": vpc.generation(now_ms),
            "region": vpc.config().region,
            "vpc-id": vpc.config().vpc_id,
            "vpc-cidrs": vpc.cidrs(),
            "subnets": vpc.subnets(),
            "instances": vpc.instances(now_ms),
            "enis": enis,
        })
    })
}

fn refuse(status: u16, cause: &str) -> Reply {
    json_reply(status, &json!({ "error": cause }))
}

fn json_reply(status: u16, body: &(impl Serialize + ?Sized)) -> Reply {
    match serde_json::to_string_pretty(body) {
        Ok(body) => Reply::new(status, "application/json", body),
        Err(error) => Reply::new(500, "text/plain", error.to_string()),
    }
}
