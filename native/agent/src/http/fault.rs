//! Everything that can go wrong in a request, in the vocabulary of the Connect protocol.

use std::io;

use hyper::StatusCode;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Code {
    InvalidArgument,
    Unauthenticated,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    Unimplemented,
    Unavailable,
    DeadlineExceeded,
    Internal,
    NoSpace,
}

impl Code {
    pub fn name(self) -> &'static str {
        match self {
            Code::InvalidArgument => "invalid_argument",
            Code::Unauthenticated => "unauthenticated",
            Code::NotFound => "not_found",
            Code::AlreadyExists => "already_exists",
            Code::PermissionDenied => "permission_denied",
            Code::ResourceExhausted | Code::NoSpace => "resource_exhausted",
            Code::Unimplemented => "unimplemented",
            Code::Unavailable => "unavailable",
            Code::DeadlineExceeded => "deadline_exceeded",
            Code::Internal => "internal",
        }
    }

    pub fn status(self) -> StatusCode {
        match self {
            Code::InvalidArgument => StatusCode::BAD_REQUEST,
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::AlreadyExists => StatusCode::CONFLICT,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::ResourceExhausted => StatusCode::PAYLOAD_TOO_LARGE,
            Code::Unimplemented => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::Unavailable => StatusCode::BAD_GATEWAY,
            Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Code::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        }
    }
}

#[derive(Debug)]
pub struct Fault {
    pub code: Code,
    pub message: String,
}

impl Fault {
    pub fn new(code: Code, message: impl Into<String>) -> Fault {
        Fault { code, message: message.into() }
    }

    pub fn invalid(message: impl Into<String>) -> Fault {
        Fault::new(Code::InvalidArgument, message)
    }

    pub fn internal(message: impl Into<String>) -> Fault {
        Fault::new(Code::Internal, message)
    }

    /// A failed system call on something the caller named.
    pub fn io(subject: &str, error: &io::Error) -> Fault {
        let code = match error.raw_os_error() {
            Some(libc::ENOENT) => Code::NotFound,
            Some(libc::EEXIST | libc::ENOTEMPTY) => Code::AlreadyExists,
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => Code::PermissionDenied,
            Some(libc::ENOSPC | libc::EDQUOT) => Code::NoSpace,
            Some(libc::ENOTDIR | libc::EISDIR | libc::EINVAL | libc::ENAMETOOLONG | libc::ELOOP | libc::EXDEV) => {
                Code::InvalidArgument
            }
            _ => Code::Internal,
        };
        Fault::new(code, format!("{subject}: {error}"))
    }
}
