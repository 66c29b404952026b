"""The codes of this protocol: what each means, and what to do about it.

A code is for programs and never changes its meaning; titles, meanings and remedies are for people.
``GET /v1/problems/{code}`` shows an entry.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from leasehold.extras import install

PROBLEMS: Final = "/v1/problems/"
"""Where a code is explained; the ``type`` of a problem is this followed by the code."""


class Code(NamedTuple):
    """What stands behind a code."""

    status: int
    title: str
    meaning: str
    remedy: str
    """What to do about it, where the problem itself says nothing more exact."""


CODES: Final[dict[str, Code]] = {
    "invalid-request": Code(
        400,
        "The request cannot be read",
        "The body is not the JSON that this call takes, or a query parameter cannot be read: bad "
        "syntax, a member of the wrong type, or one that the call does not know. Nothing was done.",
        "Send what the document at /v1/openapi.json shows for this call. `field` names the place.",
    ),
    "out-of-range": Code(
        400,
        "A value is outside its limits",
        "`field` has the value `value`, but may be from `minimum` to `maximum`.",
        "Send a value between the two; both ends are allowed.",
    ),
    "invalid-queue-name": Code(
        400,
        "This cannot be the name of a queue",
        "The name of a queue is 1 to 256 of A-Z, a-z, 0-9 and dashes, and does not begin with one. "
        "Clients of Azure can use 3 to 63 of a-z, 0-9 and single dashes between them.",
        "Use lower-case letters, digits and single inner dashes, which every protocol takes.",
    ),
    "body-too-large": Code(
        413,
        "The body of a message is too large",
        "The body has `value` bytes, and a message may have `limit`. The size is that of the body "
        "itself, not of its encoding in JSON.",
        "Split the message, or keep what is large elsewhere and send where it is.",
    ),
    "request-too-large": Code(
        413,
        "The request is too large",
        "The body of the request has more than `limit` bytes. It was not read to its end.",
        "Send fewer messages in one request.",
    ),
    "receipt-malformed": Code(
        400,
        "This is no receipt",
        "What was sent as a receipt does not have the form of one.",
        "Send the receipt exactly as the last receive or renewal of the message gave it.",
    ),
    "visibility-past-expiry": Code(
        400,
        "The message would expire before anybody could receive it",
        "The message would become visible only when its time to live has run out.",
        "Choose a shorter delay or visibility timeout, or a longer time to live.",
    ),
    "unauthenticated": Code(
        401,
        "The request does not prove who sent it",
        "The request carries no key, signature or token, or one that is not right.",
        "Send `Authorization: Bearer` with the account's key over https, sign the request, or add "
        "a shared access signature to its query.",
    ),
    "forbidden": Code(
        403,
        "These credentials do not allow this",
        "The sender is known, but may not do this, or not from there.",
        "Use credentials that grant the operation. An inspector's key only reads.",
    ),
    "no-such-route": Code(
        404,
        "There is nothing at this address",
        "The path is none of this protocol.",
        "Look up the path in the document at /v1/openapi.json.",
    ),
    "queue-not-found": Code(
        404,
        "There is no such queue",
        "The account has no queue of this name.",
        "Create it first: PUT /v1/accounts/{account}/queues/{queue}.",
    ),
    "message-not-found": Code(
        404,
        "There is no such message",
        "The queue holds no message of this id: it never did, or the message is completed, removed "
        "or expired, or was moved to another queue.",
        "If a worker gets this on completing, the message was completed by somebody else, or set "
        "aside after too many deliveries, which GET /messages/{id} tells: take no further step "
        "for it.",
    ),
    "job-not-found": Code(
        404,
        "There is no such job",
        "The account has no job of this id. A job is forgotten a while after its end.",
        "List the jobs: GET /v1/accounts/{account}/jobs.",
    ),
    "method-not-allowed": Code(
        405,
        "The address does not take this method",
        "The path is right, but not with this method.",
        "Use one of the methods in the header Allow.",
    ),
    "queue-exists": Code(
        409,
        "The queue is there with other metadata",
        "A queue of this name exists already, and its metadata are not those sent.",
        "Leave `metadata` out to take the queue as it is, or change them with PATCH.",
    ),
    "settings-differ": Code(
        409,
        "The queue is there with other settings",
        "A queue of this name exists already, and has other settings than those sent.",
        "Leave `settings` out to take the queue as it is, or change them with PATCH.",
    ),
    "message-leased": Code(
        409,
        "Somebody is working on the message",
        "The message is leased to `holder` until `until_ms`.",
        "Wait until then, or send `force` to end the lease as well.",
    ),
    "message-not-leased": Code(
        409,
        "Nobody is working on the message",
        "There is no lease to end.",
        "Nothing needs to be done: the message is not held by anybody.",
    ),
    "lease-lost": Code(
        409,
        "The receipt is not the current one",
        "The receipt does not act on the message any more. `reason` is `superseded` (received or "
        "renewed since), `lapsed` (its lease ran out, and the queue's rule is strict) or `foreign` "
        "(this server never issued it, or it belongs to another message).",
        "Stop working on the message: somebody else may hold it. Renew earlier, or ask for a "
        "longer visibility timeout.",
    ),
    "session-not-found": Code(
        404,
        "There is no such session",
        "The account has no session of this id. One that is over is forgotten an hour later.",
        "Open a new session: POST /v1/accounts/{account}/sessions.",
    ),
    "session-over": Code(
        409,
        "The session is over",
        "The session was lost, because no heartbeat came in time, or was ended; `state` says "
        "which. All its leases have ended.",
        "Drop the work of the session: others may have its messages. Open a new session before "
        "you receive again, and send a heartbeat every quarter of its timeout.",
    ),
    "stream-not-found": Code(
        404,
        "There is no such stream",
        "The queue has no stream of this name.",
        "Attach it first: PUT /v1/accounts/{account}/queues/{queue}/streams/{stream}.",
    ),
    "stale-token": Code(
        409,
        "Somebody else has attached to the stream",
        "The token is not that of the last attach, which has the token `token`.",
        "Stop: another run works on the stream. Attach again only if you are to take it over.",
    ),
    "claim-not-found": Code(
        404,
        "There is no such claim",
        "The stream has no claim of this number that can be used: it was never opened, was given "
        "back, or is still being opened.",
        "Open it: PUT the address of the claim. An open that found no messages made no claim.",
    ),
    "claim-out-of-turn": Code(
        409,
        "The claim is not the next one",
        "Claims are opened, and settled, one after the other; `expected` is the number that is "
        "next.",
        "Go on with the number `expected`.",
    ),
    "claim-settled": Code(
        409,
        "The claim has been settled",
        "All claims up to `last_settled` are settled, and their messages are gone. `settled_with` "
        "names the transaction whose publishing did that, if it was one.",
        "Go on with the number after `last_settled`.",
    ),
    "claim-lapsed": Code(
        409,
        "The claim has lapsed",
        "Nobody extended the claim before `until_ms`, so that others may take its members.",
        "Open it again with the same number: while nobody has taken a member it is whole. Extend "
        "earlier, or open with a longer `lease_s`.",
    ),
    "claim-broken": Code(
        409,
        "Others have taken members of the claim",
        "Of the `size` members of the claim `lost` are gone: it can not be read as it was.",
        "Open it again with `accept_loss` to go on with what remains, or give it back.",
    ),
    "member-not-found": Code(
        404,
        "A message is no member of the claim",
        "An exemption names the message `value`, which is not among the members that the claims "
        "still have. Nothing was settled.",
        "Leave out the exemption: somebody else has the message.",
    ),
    "staged-not-found": Code(
        404,
        "Nothing is staged under this name",
        "The account has no such transaction, or the transaction has no such part (`value`). "
        "What nobody publishes vanishes after a time-out. Nothing was done.",
        "Stage again, then publish. To publish nothing, send an empty list of `parts`.",
    ),
    "already-published": Code(
        409,
        "The transaction has been published",
        "Nothing can be staged under the name of a transaction that has been published.",
        "If this is a repetition, it has been done. For new messages choose another name.",
    ),
    "chunk-out-of-turn": Code(
        409,
        "The chunk is not the next one",
        "The chunks of a part are staged one after the other; `expected` is the number of the "
        "next one.",
        "Stage from the chunk `expected` on. If that is 0, what was staged has vanished.",
    ),
    "arrow-not-installed": Code(
        406,
        "The server cannot answer in Arrow",
        "The request asks for an Arrow stream, and the library for it is not installed where the "
        "server runs.",
        f"Beside the server {install('arrow')}; or ask for JSON.",
    ),
    "arrow-not-taken": Code(
        415,
        "The server cannot read Arrow",
        "The request holds an Arrow stream, and the library for it is not installed where the "
        "server runs.",
        f"Beside the server {install('arrow')}; or send JSON.",
    ),
    "named-twice": Code(
        400,
        "The message is named twice",
        "An earlier item of the same all-or-nothing batch names this message.",
        "Name each message once.",
    ),
    "not-done": Code(
        409,
        "Nothing was done",
        "Another item of the same all-or-nothing batch was refused.",
        "Mend or leave out the refused items, and send the batch again.",
    ),
    "invalid-marker": Code(
        400,
        "This is no place to go on from",
        "`after` is not what an earlier page gave as `next_after`.",
        "Start again without `after`.",
    ),
    "internal-error": Code(
        500,
        "The server met an error of its own",
        "Something went wrong that should not. Whether anything was done is not known.",
        "Look for the Request-Id in the server's log.",
    ),
    "body-unreadable": Code(
        500,
        "The body of the message cannot be read",
        "The message has a large body, which is kept outside the database and is `missing` or "
        "`corrupt` there (`reason`). `value` is the id of the message.",
        "Put the body back from a backup, or give the message a new one (amend-message), or remove "
        "the message.",
    ),
    "store-full": Code(
        503,
        "The disk of the server is full",
        "Nothing can be put until there is room. Messages can still be received and completed.",
        "Consume messages or give the server more disk, then send the request again.",
    ),
    "overloaded": Code(
        503,
        "Too many requests are waiting",
        "The server has as many requests waiting as it takes. This one was not begun.",
        "Send it again after a pause that grows from try to try.",
    ),
    "stopping": Code(
        503,
        "The server is stopping",
        "The server takes no more requests. This one was not begun.",
        "Send it again; the server may be back soon.",
    ),
    "account-moved": Code(
        503,
        "The account was moved to another store",
        "The server still looks for the account in the store that it has left. Nothing was done.",
        "Whoever runs the server names the account's new store in `account_stores` and starts the "
        "server again; after that, send the request once more. Nothing is lost.",
    ),
    "store-failed": Code(
        503,
        "The disk failed",
        "The store failed while writing. Whether the request took effect is not known.",
        "Look at the server's log. Send the request again when the server is back; a message put "
        "with a `dedup_key` is not put twice.",
    ),
}
