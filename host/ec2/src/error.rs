//! Failures of EC2 calls told apart: EC2's codes in one table, and a call that was never sent from one that may have
//! been carried out.

use std::error::Error;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_ec2::config::http::HttpResponse;
use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use wipam_core::cloud::{CloudError, ErrorKind};

/// EC2's error codes and what they mean to us. What is not listed: 5xx = [`ErrorKind::ServerError`], a code with a
/// [known ending](ENDINGS), else [`ErrorKind::Refused`].
const CODES: &[(&str, ErrorKind)] = &[
    ("RequestLimitExceeded", ErrorKind::Throttled),
    ("Throttling", ErrorKind::Throttled),
    ("ThrottlingException", ErrorKind::Throttled),
    ("ThrottledException", ErrorKind::Throttled),
    ("RequestThrottled", ErrorKind::Throttled),
    ("RequestThrottledException", ErrorKind::Throttled),
    ("TooManyRequestsException", ErrorKind::Throttled),
    ("BandwidthLimitExceeded", ErrorKind::Throttled),
    ("EC2ThrottledException", ErrorKind::Throttled),
    ("SlowDown", ErrorKind::Throttled),
    ("InsufficientFreeAddressesInSubnet", ErrorKind::SubnetFull),
    ("InsufficientCidrBlocks", ErrorKind::NoCidrBlock),
    ("PrivateIpAddressLimitExceeded", ErrorKind::AddressLimit),
    ("AttachmentLimitExceeded", ErrorKind::EniLimit),
    ("NetworkInterfaceLimitExceeded", ErrorKind::EniLimit),
    ("UnauthorizedOperation", ErrorKind::NotAuthorised),
    ("AuthFailure", ErrorKind::NotAuthorised),
    ("AccessDenied", ErrorKind::NotAuthorised),
    ("AccessDeniedException", ErrorKind::NotAuthorised),
    ("InvalidClientTokenId", ErrorKind::NotAuthorised),
    ("MissingAuthenticationToken", ErrorKind::NotAuthorised),
    ("SignatureDoesNotMatch", ErrorKind::NotAuthorised),
    ("UnrecognizedClientException", ErrorKind::NotAuthorised),
    ("InvalidNetworkInterface.NotFound", ErrorKind::NotFound),
    ("InvalidNetworkInterface.InUse", ErrorKind::InUse),
    ("InvalidIPAddress.InUse", ErrorKind::InUse),
    ("DependencyViolation", ErrorKind::InUse),
    ("IncorrectState", ErrorKind::InUse),
    ("OperationNotPermitted.InUse", ErrorKind::InUse),
    // A repeated ClientToken with other parameters: the earlier call with it did reach EC2. Whether it made the
    // interface only a describe can tell.
    ("IdempotentParameterMismatch", ErrorKind::NoAnswer),
    ("RequestTimeout", ErrorKind::ServerError),
    ("InternalError", ErrorKind::ServerError),
    ("InternalFailure", ErrorKind::ServerError),
    ("InternalServerError", ErrorKind::ServerError),
    ("ServerInternal", ErrorKind::ServerError),
    ("ServiceUnavailable", ErrorKind::ServerError),
    ("Unavailable", ErrorKind::ServerError),
];

/// Endings of families of codes (`InvalidSubnetID.NotFound`, `InvalidAttachmentID.NotFound`, …).
const ENDINGS: &[(&str, ErrorKind)] = &[(".NotFound", ErrorKind::NotFound), (".InUse", ErrorKind::InUse)];

/// What EC2's error `code`, sent with HTTP `status`, means.
pub fn kind_of(code: &str, status: u16) -> ErrorKind {
    if let Some((_, kind)) = CODES.iter().find(|(known, _)| *known == code) {
        return *kind;
    }
    if let Some((_, kind)) = ENDINGS.iter().find(|(ending, _)| code.ends_with(ending)) {
        return *kind;
    }
    if status >= 500 { ErrorKind::ServerError } else { ErrorKind::Refused }
}

fn failed(kind: ErrorKind, code: impl Into<String>, message: impl Into<String>) -> CloudError {
    CloudError { kind, code: code.into(), message: message.into() }
}

/// EC2 said yes, but with an answer that lacks what it must hold: the change has happened, so only a describe can tell.
pub(crate) fn unreadable(what: &str) -> CloudError {
    failed(ErrorKind::NoAnswer, "UnreadableAnswer", format!("the answer has no usable {what}"))
}

/// Code of a call that was not sent because all calls together are over their rate.
pub(crate) const LOCAL_RATE_LIMIT: &str = "LocalRateLimit";

/// Not sent: our own bucket would let this call wait too long.
pub(crate) fn over_rate(why: &crate::bucket::TooLong) -> CloudError {
    failed(ErrorKind::Throttled, LOCAL_RATE_LIMIT, why.to_string())
}

/// Types an error of the SDK.
pub(crate) fn classify<E>(error: SdkError<E, HttpResponse>) -> CloudError
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    match &error {
        SdkError::ServiceError(answer) => {
            let status = answer.raw().status().as_u16();
            let meta = answer.err().meta();
            match meta.code() {
                Some(code) => failed(kind_of(code, status), code, meta.message().unwrap_or("(no text)")),
                None => without_code(status),
            }
        }
        SdkError::TimeoutError(_) => failed(ErrorKind::NoAnswer, "Timeout", chain(&error)),
        SdkError::ResponseError(answer) => {
            CloudError { message: chain(&error), ..without_code(answer.raw().status().as_u16()) }
        }
        SdkError::ConstructionFailure(_) => unanswered(&error, ErrorKind::Refused, "NotSent"),
        SdkError::DispatchFailure(_) => unanswered(&error, ErrorKind::NoAnswer, "ConnectionFailed"),
        _ => failed(ErrorKind::NoAnswer, "Unknown", chain(&error)),
    }
}

/// A proxy's page, or a body cut off: only the status is left to go by. A *yes* that cannot be read was still a yes.
fn without_code(status: u16) -> CloudError {
    let text = "the answer carries no EC2 error code";
    match status {
        400..=499 => failed(ErrorKind::Refused, format!("Http{status}"), text),
        500.. => failed(ErrorKind::ServerError, format!("Http{status}"), text),
        _ => failed(ErrorKind::NoAnswer, "UnreadableAnswer", text),
    }
}

/// No answer came. Either nothing was sent (no credentials, no connection), or the connection broke after the request
/// had gone out; `otherwise` and `code` hold where the error does not show which.
fn unanswered(error: &(dyn Error + 'static), otherwise: ErrorKind, code: &str) -> CloudError {
    if let Some(credentials) = find::<CredentialsError>(error) {
        // Without any source of credentials only an operator helps; a source that is down may come back.
        let kind = match credentials {
            CredentialsError::CredentialsNotLoaded(_) | CredentialsError::InvalidConfiguration(_) => {
                ErrorKind::NotAuthorised
            }
            _ => ErrorKind::Refused,
        };
        return failed(kind, "NoCredentials", chain(error));
    }
    match find::<hyper_util::client::legacy::Error>(error) {
        Some(http) if http.is_connect() => failed(ErrorKind::Refused, "NotConnected", chain(error)),
        Some(_) => failed(ErrorKind::NoAnswer, "ConnectionReset", chain(error)),
        None => failed(otherwise, code, chain(error)),
    }
}

fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut current = Some(error);
    while let Some(error) = current {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        current = error.source();
    }
    None
}

/// The error and its causes in one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Some wrappers repeat their cause's text as their own.
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_table_is_found_whatever_its_status() {
        for (code, kind) in CODES {
            for status in [200, 400, 403, 503] {
                assert_eq!(kind_of(code, status), *kind, "{code} {status}");
            }
        }
    }

    /// The codes that the daemon's decisions hang on, spelled out once more so that a slip in the table shows.
    #[test]
    fn codes_that_matter() {
        let expected = [
            ("RequestLimitExceeded", 503, ErrorKind::Throttled),
            ("Throttling", 400, ErrorKind::Throttled),
            ("ThrottlingException", 400, ErrorKind::Throttled),
            ("RequestThrottled", 400, ErrorKind::Throttled),
            ("InsufficientFreeAddressesInSubnet", 400, ErrorKind::SubnetFull),
            ("InsufficientCidrBlocks", 400, ErrorKind::NoCidrBlock),
            ("PrivateIpAddressLimitExceeded", 400, ErrorKind::AddressLimit),
            ("AttachmentLimitExceeded", 400, ErrorKind::EniLimit),
            ("NetworkInterfaceLimitExceeded", 400, ErrorKind::EniLimit),
            ("UnauthorizedOperation", 403, ErrorKind::NotAuthorised),
            ("AuthFailure", 401, ErrorKind::NotAuthorised),
            ("InvalidNetworkInterfaceID.NotFound", 400, ErrorKind::NotFound),
            ("InvalidAttachmentID.NotFound", 400, ErrorKind::NotFound),
            ("InvalidSubnetID.NotFound", 400, ErrorKind::NotFound),
            ("InvalidNetworkInterface.InUse", 400, ErrorKind::InUse),
            ("IncorrectState", 400, ErrorKind::InUse),
            ("IdempotentParameterMismatch", 400, ErrorKind::NoAnswer),
            ("InternalError", 500, ErrorKind::ServerError),
            ("Unavailable", 503, ErrorKind::ServerError),
            ("NeverHeardOf", 500, ErrorKind::ServerError),
            ("", 502, ErrorKind::ServerError),
            ("NeverHeardOf", 400, ErrorKind::Refused),
            ("InvalidParameterValue", 400, ErrorKind::Refused),
            ("InvalidParameterCombination", 400, ErrorKind::Refused),
        ];
        for (code, status, kind) in expected {
            assert_eq!(kind_of(code, status), kind, "{code} {status}");
        }
    }

    #[test]
    fn no_code_is_listed_twice() {
        for (n, (code, _)) in CODES.iter().enumerate() {
            assert!(CODES[n + 1..].iter().all(|(other, _)| other != code), "{code}");
        }
    }
}
