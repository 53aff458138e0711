//! The shape of a SigV4 signature: header, scope, date. Its value cannot be checked without the secret.

use time::PrimitiveDateTime;
use time::macros::format_description;

use crate::http::Asked;
use crate::model::Ec2Error;

/// How far the caller's clock may be off, as for AWS.
const MAX_SKEW_MS: u64 = 5 * 60_000;

/// The access key id of a call whose signature has the right shape.
pub(super) fn check(asked: &Asked, region: &str, unix_now_ms: u64) -> Result<String, Ec2Error> {
    let Some(authorization) = asked.header("authorization") else {
        let error = Ec2Error::new("MissingAuthenticationToken", "Request is missing Authentication Token");
        return Err(Ec2Error { http_status: 403, ..error });
    };
    let incomplete = |what: &str| {
        let message = format!("Authorization header requires {what}.");
        Ec2Error::new("IncompleteSignature", message)
    };
    let fields = authorization
        .strip_prefix("AWS4-HMAC-SHA256 ")
        .ok_or_else(|| Ec2Error::new("AuthFailure", "Only the algorithm AWS4-HMAC-SHA256 is supported."))?;
    let field = |name: &str| {
        fields
            .split(',')
            .find_map(|field| field.trim().strip_prefix(name)?.strip_prefix('='))
            .ok_or_else(|| incomplete(&format!("'{name}' parameter")))
    };
    let credential = field("Credential")?;
    let signed: Vec<&str> = field("SignedHeaders")?.split(';').collect();
    let signature = field("Signature")?;
    let date = asked.header("x-amz-date").ok_or_else(|| incomplete("existence of an 'X-Amz-Date' header"))?;

    let scope: Vec<&str> = credential.split('/').collect();
    let [key, day, scope_region, service, "aws4_request"] = scope[..] else {
        return Err(incomplete("a credential of the form KEY/date/region/service/aws4_request"));
    };
    if !date.starts_with(day) {
        return Err(auth_failure(format!("Date in credential scope does not match YYYYMMDD of X-Amz-Date: {day}.")));
    }
    if scope_region != region || service != "ec2" {
        return Err(auth_failure(format!(
            "Credential should be scoped to region '{region}' and service 'ec2', not '{scope_region}' and '{service}'."
        )));
    }
    if !["host", "x-amz-date"].iter().all(|header| signed.contains(header)) {
        return Err(auth_failure("The headers host and x-amz-date must be signed.".into()));
    }
    if signature.len() != 64 || !signature.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(auth_failure("The signature is not 64 hexadecimal digits.".into()));
    }
    let then = unix_ms(date).ok_or_else(|| incomplete("an 'X-Amz-Date' like 20260131T235959Z"))?;
    if then.abs_diff(unix_now_ms) > MAX_SKEW_MS {
        return Err(Ec2Error::new("RequestExpired", format!("Request has expired: signed at {date}.")));
    }
    Ok(key.to_owned())
}

fn auth_failure(message: String) -> Ec2Error {
    Ec2Error::new("AuthFailure", message)
}

fn unix_ms(date: &str) -> Option<u64> {
    let format = format_description!("[year][month][day]T[hour][minute][second]Z");
    let then = PrimitiveDateTime::parse(date, format).ok()?.assume_utc();
    u64::try_from(then.unix_timestamp()).ok().map(|seconds| seconds * 1000)
}
