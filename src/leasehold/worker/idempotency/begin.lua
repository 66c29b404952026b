-- Enters a holder under a key; the conditions are those of may_begin in rules.py.
-- KEYS: the key. ARGV: source, fence, run, length of the hold and of the window in milliseconds.
-- Gives nil if the holder may go ahead, or the fields of what stands in its way. What has expired
-- was removed by the server.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local source, fence, run = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local entry = redis.call('HMGET', KEYS[1], 'source', 'fence', 'run', 'done', 'held_until_ms')
if entry[1] then
    local free = false
    if entry[4] ~= '1' then
        if entry[1] ~= source then
            free = tonumber(entry[5]) <= now_ms
        else
            free = tonumber(entry[2]) < fence or entry[3] == run
        end
    end
    if not free then
        local standing = redis.call('HMGET', KEYS[1], 'source', 'fence', 'run', 'done', 'result',
            'since_ms', 'held_until_ms')
        standing[8] = string.format('%.0f', now_ms + redis.call('PTTL', KEYS[1]))
        return standing
    end
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'source', source, 'fence', ARGV[2], 'run', run, 'done', '0',
    'since_ms', string.format('%.0f', now_ms),
    'held_until_ms', string.format('%.0f', now_ms + ARGV[4]))
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return false
