//! The EC2 Query API over a simulated VPC: POST forms in, XML out, with EC2's error codes and HTTP statuses.
//!
//! The signature itself is not computed (there is no secret); its shape, scope and date are checked. The access key id
//! is the caller's name for fault rules. A call's latency is really waited for; a lost reply breaks the connection.

mod answer;
mod params;
mod parse;
mod sigv4;
mod xml;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use tokio::net::TcpListener;

use crate::control;
use crate::http::{self, Asked, Reply};
use crate::model::Ec2Error;
use crate::sim::Sim;
use params::Params;

/// Serves the EC2 API on `/` and the control surface on `/_sim/…` until `shutdown` is ready.
///
/// # Errors
/// When the listener fails.
pub async fn serve_api(
    listener: TcpListener,
    sim: Arc<Sim>,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    http::serve(listener, None, shutdown, move |asked| {
        let sim = Arc::clone(&sim);
        async move {
            match asked.path.strip_prefix("/_sim/") {
                Some(_) => control::answer(&sim, &asked),
                None => call(&sim, &asked).await,
            }
        }
    })
    .await
}

async fn call(sim: &Sim, asked: &Asked) -> Reply {
    let request_id = request_id(sim);
    let refuse = |error: &Ec2Error| {
        tracing::debug!(code = %error.code, message = %error.message, "refused");
        reply(error.http_status, answer::error(error, &request_id))
    };
    let form = match asked.method {
        Method::POST => std::str::from_utf8(&asked.body).unwrap_or_default(),
        Method::GET => &asked.query,
        _ => return refuse(&Ec2Error::new("InvalidRequest", "Use POST (or GET) with a form.")),
    };
    let params = Params::parse(form);
    let region = sim.lock().config().region.clone();
    let caller = match sigv4::check(asked, &region, sim.clock().unix_ms()) {
        Ok(caller) => caller,
        Err(error) => return refuse(&error),
    };
    let request = match parse::request(&params) {
        Ok(request) => request,
        Err(error) => return refuse(&error),
    };
    let dry_run = params.get("DryRun").is_some_and(|value| value == "true");
    let (outcome, scene) = sim.with(|vpc, now_ms| {
        let outcome = vpc.call_as(now_ms, &caller, dry_run, &request);
        (outcome, answer::Scene::of(vpc.config(), *sim.clock()))
    });
    let action = request.action();
    let code = outcome.result.as_ref().err().map(|error| error.code.as_str());
    tracing::debug!(action, caller, code, latency_ms = outcome.latency_ms, lost = outcome.lost_reply, "call");
    if outcome.latency_ms > 0 {
        tokio::time::sleep(Duration::from_millis(outcome.latency_ms)).await;
    }
    if outcome.lost_reply {
        return Reply::Broken;
    }
    match &outcome.result {
        Ok(response) => reply(200, scene.success(action, response, &request_id)),
        Err(error) => refuse(error),
    }
}

fn reply(status: u16, body: String) -> Reply {
    Reply::new(status, "text/xml;charset=UTF-8", body)
}

/// Something that looks like EC2's request ids: for log lines only.
fn request_id(sim: &Sim) -> String {
    let now = sim.clock().unix_ms();
    format!("{:08x}-{:04x}-4000-8000-{:012x}", now >> 16 & 0xFFFF_FFFF, now & 0xFFFF, now)
}
