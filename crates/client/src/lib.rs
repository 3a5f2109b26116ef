//! One API client over an in-process or HTTPS transport, informers, work queues and the event recorder.
